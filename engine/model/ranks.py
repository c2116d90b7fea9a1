"""One model over several devices: which rank this process is, and its share of the weights.

Every rank holds all layers and a share of their heads. How each weight is cut is Transformers' plan
for the model; torch.distributed sums what the ranks computed, by NCCL on GPUs and by Gloo on a CPU.
It refuses to know processes (`engine/leader.py`) and what a step is.
"""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import get_kv_heads_per_rank
from transformers.distributed.utils import TransformersDeviceMesh

from engine.errors import Misconfigured

_MEETING = timedelta(minutes=30)
"""How long a rank waits for another: one may read its weights from a slower disk."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One of `size` ranks; they find each other by the file `meeting`, which is theirs alone."""

    rank: int = 0
    size: int = 1
    meeting: Path | None = None

    def device(self, device: torch.device) -> torch.device:
        """Its own of the machine's devices. Raises `Misconfigured` where there are too few."""
        if self.size == 1 or device.type != "cuda":
            return device
        if self.size > torch.cuda.device_count():
            raise _misconfigured(self.size, f"this machine has {torch.cuda.device_count()} GPUs")
        return torch.device("cuda", self.rank)

    def join(self, device: torch.device) -> TransformersDeviceMesh | None:
        """Meet the others. Raises `Misconfigured` where this process has met some already."""
        if self.size == 1:
            return None
        if dist.is_initialized():
            raise _misconfigured(self.size, "one engine of a process can have ranks")
        on_gpu = device.type == "cuda"
        # They are on one machine, and no other one is to reach them: both libraries would listen on
        # the address that the host's name stands for.
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback)
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=f"file://{self.meeting}",
            rank=self.rank,
            world_size=self.size,
            timeout=_MEETING,
            device_id=device if on_gpu else None,
        )
        names = ("pp", "dp_replicate", "fsdp", "tp")
        mesh = init_device_mesh(device.type, (1, 1, 1, self.size), mesh_dim_names=names)
        return TransformersDeviceMesh(mesh, mesh)

    def leave(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def least(self, number: int) -> int:
        """The smallest that any rank says; all are asked in the same order."""
        if self.size == 1:
            return number
        said = torch.tensor(number)
        dist.all_reduce(said, dist.ReduceOp.MIN)
        return int(said)

    def check(self, source: str) -> None:
        """Raise `Misconfigured`, with the figures, where a model cannot be shared by so many."""
        if self.size > 1:
            model = _outline(source)
            self.kv_heads(model)

    def modules(
        self,
        source: str,
        device: torch.device,
        meshes: TransformersDeviceMesh | None,
        **options: Any,
    ) -> Any:
        """This rank's share of a model; of several ranks none reads more than its share."""
        if meshes is None:
            return AutoModelForCausalLM.from_pretrained(source, **options)
        kind = _on_mesh(type(_outline(source)), device, meshes)
        plan = DistributedConfig(tp_size=self.size, tp_plan="auto")
        return kind.from_pretrained(source, distributed_config=plan, **options)

    def kv_heads(self, model: Any) -> int:
        """How many of a model's KV heads a rank has: all where the plan leaves attention whole.

        Raises `Misconfigured`.
        """
        config = model.config.get_text_config()
        heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        if self.size == 1:
            return heads
        if not model.tp_plan:
            raise _misconfigured(self.size, "Transformers has no plan for models of this kind")
        share = get_kv_heads_per_rank(model.tp_plan, heads, self.size)
        if share is None:
            raise _misconfigured(
                self.size, f"the model's {heads} KV heads cannot be shared evenly by so many"
            )
        assert isinstance(share, int)
        return share


ALONE = Ranks()


def _outline(source: str) -> Any:
    """A model's modules without any weights."""
    config = AutoConfig.from_pretrained(source)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _on_mesh(kind: Any, device: torch.device, meshes: TransformersDeviceMesh) -> Any:
    """A kind of model that is loaded on `device` as its part of `meshes`.

    Transformers' own way asks torch which accelerator it was built for, and finds none to set where
    a CUDA build runs on a CPU.
    """

    def prepare(_: Any, plan: DistributedConfig, device_map: Any = None) -> tuple[Any, Any, Any]:
        assert device_map is None
        return plan, device, meshes

    members = {"__module__": kind.__module__, "prepare_distribute_model": classmethod(prepare)}
    return type(kind.__name__, (kind,), members)


def _misconfigured(size: int, why: str) -> Misconfigured:
    return Misconfigured(f"tensor_parallel is {size}: {why}; use another number, or 1")
