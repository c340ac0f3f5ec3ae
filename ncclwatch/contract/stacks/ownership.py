"""Says whether a file is the user's own code, or torch's, a framework's, the interpreter's, ours.

The user's call site is the first frame, from the inside out, that is the user's own. A package in
site-packages that is not named here counts as the user's own: companies install their trainers.
"""

import os
import sysconfig

# Packages whose frames stand between the user and torch, and the small ones that only wrap calls.
FRAMEWORKS = frozenset(
    "torch torchvision torchaudio torchdata torchmetrics torchft lightning lightning_fabric lightning_utilities "
    "pytorch_lightning accelerate transformers trl peft datasets deepspeed fairscale colossalai composer streaming "
    "megatron transformer_engine apex ray horovod ignite catalyst fastai mmengine timm einops numpy safetensors fsspec "
    "typing_extensions wrapt decorator tqdm click fire hydra absl typer beartype jaxtyping typeguard tensordict "
    "pytest _pytest pluggy ncclwatch ncclwatch_agent ncclwatch_server".split()
)
# Code that the interpreter and torch's compilers make, whose lines nobody wrote.
_GENERATED = ("<frozen", "<eval_with_key>", "<torch", "<__array_function__", "<fx")
_PACKAGES = ("/site-packages/", "/dist-packages/")
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_STDLIB = tuple(
    {os.path.realpath(path) + os.sep for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))}
)


def is_users(filename: str) -> bool:
    """Say whether code of this file, which lies on this machine, is the user's own."""
    return is_users_by_path(filename) and not os.path.realpath(filename).startswith(_STDLIB)


def is_users_by_path(filename: str) -> bool:
    """Say the same of a path that another machine sent. It is only read, never looked up here."""
    if not filename or filename.startswith((*_GENERATED, _OWN)) or "/torchinductor_" in filename:
        return False
    for marker in _PACKAGES:
        at = filename.rfind(marker)
        if at >= 0:
            return filename[at + len(marker) :].split("/", 1)[0].removesuffix(".py") not in FRAMEWORKS
    return "/lib/python3" not in filename  # the standard library, here or on another machine
