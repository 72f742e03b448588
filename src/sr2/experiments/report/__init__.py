"""Tables, figures and one page from run folders. Nothing here trains, and nothing here knows the paper."""
