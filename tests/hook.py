"""A Python that has nothing but torch and numpy: code to run before an import."""

HOOK = """
import sys
class Clean:
    '''As if nothing but torch, numpy and what torch itself needs were installed.'''
    hidden = set("matplotlib rich sklearn PIL tyro safetensors scipy pandas tensorboard tqdm hypothesis pytest skglm "
                 "pyproximal torchvision".split())
    def __init__(self, finders):
        self.finders = finders
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.hidden:
            return None
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec is not None), None)
sys.meta_path[:] = [Clean(list(sys.meta_path))]
"""
