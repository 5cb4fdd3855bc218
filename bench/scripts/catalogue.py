"""Which public scripts are run: where they are, with which arguments, on which made-up data."""

from dataclasses import dataclass, field

from bench.scripts.synthetic import Maker, characters, digits, pictures, sentences

LOSS = r"[Ll]oss:? *=? *(-?[\d.]+)"


@dataclass(frozen=True, slots=True)
class Script:
    """One script of a repository.

    `value` finds the printed number that is compared, the last one; `data` makes what the script
    reads, at places that are relative to its folder.
    """

    repository: str
    folder: str
    command: tuple[str, ...]
    data: dict[str, Maker] = field(default_factory=dict[str, Maker])
    value: str = LOSS
    # Folders of the checkout that Python has to find.
    path: tuple[str, ...] = ()
    # What is copied of the folder; all of it if empty.
    only: tuple[str, ...] = ()

    @property
    def checkout(self) -> str:
        return self.repository.partition("/")[2]


def _python(words: str) -> tuple[str, ...]:
    return ("python", *words.split())


_EXAMPLES = "pytorch/examples"
_TUTORIAL = "yunjey/pytorch-tutorial"
_GAN = "eriklindernoren/PyTorch-GAN"
_LIGHTNING = "Lightning-AI/pytorch-lightning"
_DIGITS = {"../data": digits()}
_NANO = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 "
    "--log_interval=1 --block_size=32 --batch_size=8 --n_layer=2 --n_head=2 --n_embd=64 "
    "--max_iters=40 --eval_interval=20 --lr_decay_iters=40 --dropout=0.1"
)

SCRIPTS: dict[str, Script] = {
    "MNIST, convolutions": Script(
        _EXAMPLES, "mnist", _python("main.py --no-accel --epochs 2 --batch-size 32"), _DIGITS
    ),
    "MNIST, LSTM": Script(
        _EXAMPLES, "mnist_rnn", _python("main.py --epochs 2 --batch-size 32"), _DIGITS
    ),
    "MNIST, shared memory": Script(
        _EXAMPLES,
        "mnist_hogwild",
        _python("main.py --epochs 1 --batch-size 32 --num-processes 1"),
        _DIGITS,
    ),
    "MNIST, forward-forward": Script(
        _EXAMPLES,
        "mnist_forward_forward",
        _python("main.py --no_accel --epochs 6 --train_size 320 --test_size 160"),
        {"data": digits(), "../data": digits()},
        r"[Ee]rror:? *(-?[\d.]+)",
    ),
    "variational autoencoder": Script(
        _EXAMPLES, "vae", _python("main.py --no-accel --epochs 2 --batch-size 32"), _DIGITS
    ),
    "siamese network": Script(
        _EXAMPLES,
        "siamese_network",
        _python("main.py --no-accel --epochs 1 --batch-size 8 --test-batch-size 8"),
        {"../data": digits(96, 32)},
    ),
    "DCGAN": Script(
        _EXAMPLES,
        "dcgan",
        _python(
            "main.py --dataset folder --dataroot pictures --imageSize 64 --batchSize 8 --ngf 8 "
            "--ndf 8 --niter 3 --workers 1 --manualSeed 1"
        ),
        {"pictures": pictures({"one": 60, "two": 60}, 64)},
        r"Loss_D: (-?[\d.]+)",
    ),
    "polynomial regression": Script(_EXAMPLES, "regression", _python("main.py")),
    "word language model, LSTM": Script(
        _EXAMPLES,
        "word_language_model",
        _python(
            "main.py --epochs 1 --emsize 32 --nhid 32 --batch_size 8 --bptt 16 --log-interval 10"
        ),
        {"data/wikitext-2": sentences({"train.txt": 600, "valid.txt": 60, "test.txt": 60})},
        r"test loss *(-?[\d.]+)",
        only=("*.py",),
    ),
    "word language model, Transformer": Script(
        _EXAMPLES,
        "word_language_model",
        _python(
            "main.py --model Transformer --use-optimizer --lr 0.001 --epochs 1 --emsize 32 "
            "--nhid 32 --batch_size 8 --bptt 16 --log-interval 10"
        ),
        {"data/wikitext-2": sentences({"train.txt": 600, "valid.txt": 60, "test.txt": 60})},
        r"test loss *(-?[\d.]+)",
        only=("*.py",),
    ),
    "super resolution": Script(
        _EXAMPLES,
        "super_resolution",
        _python(
            "main.py --upscale_factor 4 --batchSize 2 --testBatchSize 4 --nEpochs 2 --threads 0"
        ),
        {"dataset/BSDS300/images": pictures({"train": 24, "test": 4}, 260)},
        r"Avg. PSNR: (-?[\d.]+)",
    ),
    "ImageNet, ResNet-18": Script(
        _EXAMPLES,
        "imagenet",
        _python("main.py --no-accel -a resnet18 --epochs 1 -b 4 -j 0 -p 1 --lr 0.01 --seed 1 data"),
        {
            "data/train": pictures({"one": 48, "two": 48}, 232),
            "data/val": pictures({"one": 4, "two": 4}, 232),
        },
        r"Loss (-?[\d.e+-]+)",
    ),
    "minGPT, addition": Script(
        "karpathy/minGPT",
        "projects/adder",
        _python(
            "adder.py --trainer.max_iters=40 --trainer.num_workers=0 --trainer.batch_size=16 "
            "--model.model_type=gpt-nano"
        ),
        value=r"train loss (-?[\d.]+)",
        path=(".",),
    ),
    "nanoGPT, characters": Script(
        "karpathy/nanoGPT",
        ".",
        _python(_NANO),
        {"data/shakespeare_char": characters},
        r": loss (-?[\d.]+)",
        only=("*.py", "config"),
    ),
    "makemore, Transformer": Script(
        "karpathy/makemore",
        ".",
        _python("makemore.py -i names.txt --device cpu --max-steps 60 --n-layer 2 --num-workers 0"),
        value=r"\| loss (-?[\d.]+)",
    ),
    "makemore, GRU": Script(
        "karpathy/makemore",
        ".",
        _python("makemore.py --type gru -i names.txt --device cpu --max-steps 60 --num-workers 1"),
        value=r"\| loss (-?[\d.]+)",
    ),
    "tutorial, convolutions": Script(
        _TUTORIAL,
        "tutorials/02-intermediate/convolutional_neural_network",
        _python("main.py"),
        {"../../data": digits()},
        r"test images: (-?[\d.]+)",
    ),
    "tutorial, bidirectional LSTM": Script(
        _TUTORIAL,
        "tutorials/02-intermediate/bidirectional_recurrent_neural_network",
        _python("main.py"),
        {"../../data": digits(2000, 2000)},
        r"test images: (-?[\d.]+)",
    ),
    "tutorial, autoencoder": Script(
        _TUTORIAL,
        "tutorials/03-advanced/variational_autoencoder",
        _python("main.py"),
        {"../../data": digits(1408, 160)},
        r"Reconst Loss: (-?[\d.]+)",
    ),
    "GAN": Script(
        _GAN,
        "implementations/gan",
        _python("gan.py --n_epochs 2 --batch_size 32"),
        {"../../data/mnist": digits()},
        r"D loss: (-?[\d.]+)",
    ),
    "GAN with a gradient penalty": Script(
        _GAN,
        "implementations/wgan_gp",
        _python("wgan_gp.py --n_epochs 2 --batch_size 32"),
        {"../../data/mnist": digits()},
        r"D loss: (-?[\d.]+)",
    ),
    "GAN with classes": Script(
        _GAN,
        "implementations/acgan",
        _python("acgan.py --n_epochs 1 --batch_size 16"),
        {"../../data/mnist": digits(320, 32)},
        r"D loss: (-?[\d.]+)",
    ),
    "Lightning Fabric": Script(
        _LIGHTNING,
        "examples/fabric/image_classifier",
        _python("train_fabric.py --epochs 1 --batch-size 32"),
        {"../../../Datasets": digits()},
    ),
    "Lightning, command line": Script(
        _LIGHTNING,
        "examples/pytorch/basics",
        _python(
            "autoencoder.py --trainer.max_epochs=1 --trainer.limit_train_batches=40 "
            "--trainer.limit_val_batches=2 --trainer.limit_test_batches=2 "
            "--trainer.limit_predict_batches=1 --trainer.accelerator=cpu "
            "--trainer.enable_progress_bar=False"
        ),
        {"../../Datasets": digits(60000, 10000), "data": digits(60000, 10000)},
        r"test_loss\D*(-?[\d.]+)",
    ),
    "timm, vision transformer": Script(
        "huggingface/pytorch-image-models",
        ".",
        _python(
            "train.py --data-dir pictures --model test_vit --num-classes 2 -b 8 --epochs 1 "
            "--device cpu --workers 0 --log-interval 1 --no-prefetcher"
        ),
        {
            "pictures/train": pictures({"one": 80, "two": 80}, 170),
            "pictures/validation": pictures({"one": 8, "two": 8}, 170),
        },
        r"Loss: +(-?[\d.]+)",
        only=("train.py",),
    ),
    "Ignite": Script(
        "pytorch/ignite",
        "examples/mnist",
        _python("mnist.py --epochs 1 --batch_size 32"),
        {".": digits()},
        r"Avg loss: (-?[\d.]+)",
    ),
    "Opacus": Script(
        "pytorch/opacus",
        "examples",
        _python("mnist.py --device cpu -n 1 -b 32 -r 1 --data-root data"),
        {"data": digits()},
        r"Average loss: (-?[\d.]+)",
        only=("mnist.py",),
    ),
}
