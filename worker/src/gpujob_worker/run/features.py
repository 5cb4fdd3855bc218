"""Which items may be injected: everything, less what the command line switched off."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Switches:
    """One switch per item; `--no-batch-split` and the like turn one off."""

    precision: bool = True
    attention: bool = True
    channels_last: bool = True
    convolution_autotuning: bool = True
    compile: bool = True
    regional_compile: bool = True
    optimizer: bool = True
    activation_checkpointing: bool = True
    offload: bool = True
    data_loader: bool = True
    batch_split: bool = True
    trainers: bool = True
    resume: bool = True
    # Off unless asked for by `--cuda-graphs`.
    cuda_graphs: bool = False

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Those that `--no-NAME` turns off."""
        return tuple(entry.name for entry in fields(cls) if entry.default is True)

    @classmethod
    def without(cls, names: set[str], *, cuda_graphs: bool = False) -> "Switches":
        return cls(**{name: name not in names for name in cls.names()}, cuda_graphs=cuda_graphs)
