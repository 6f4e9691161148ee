"""find_blocks on hand-written module trees."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from autofit.strategies.blocks import find_blocks, has_compiled_part, is_compiled


def test_wrapper_and_module_compiled_in_place_are_found() -> None:
    wrapped, in_place = torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 2)
    in_place.compile(backend="eager")
    for compiled in (wrapped, in_place):
        assert isinstance(compiled, nn.Module)
        assert is_compiled(compiled)
        assert has_compiled_part(nn.Sequential(nn.Sequential(compiled)))


def test_parent_of_a_compiled_module_is_not_compiled_itself() -> None:
    inner = nn.Linear(2, 2)
    inner.compile(backend="eager")
    assert not is_compiled(nn.Sequential(inner))


def test_ordinary_model_has_no_compiled_part() -> None:
    assert not has_compiled_part(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())))


class Leaf(nn.Module):
    """A user's own module without children."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Mlp(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.net(x)
        return output


class Attention(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(self.qkv(x)[..., : x.shape[-1]])
        return output


class Block(nn.Module):
    """A transformer block: two norms (repeated leaves), attention, MLP."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        output: Tensor = x + self.mlp(self.ln2(x))
        return output


class Conv(nn.Module):
    """A residual block of a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.shortcut(x) + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return output


class Holder(nn.Module):
    """A model that holds named parts and runs them in order."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            x = part(x)
        return x


class Encoder(Holder):
    pass


class Decoder(Holder):
    pass


class Stage(nn.Module):
    """A stage of a hierarchical transformer: blocks and a projection."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.down = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.down(x)
        return output


def of_class(model: nn.Module, *classes: type) -> list[nn.Module]:
    return [module for module in model.modules() if type(module) in classes]


@pytest.mark.parametrize("container", [nn.ModuleList, lambda blocks: nn.Sequential(*blocks)])
def test_blocks_of_a_container_are_found_in_order(container: Callable[[Iterable[nn.Module]], nn.Module]) -> None:
    model = Holder(embed=nn.Embedding(100, 4), blocks=container([Block() for _ in range(3)]), head=nn.Linear(4, 100))
    assert list(find_blocks(model)) == of_class(model, Block)


def test_blocks_that_are_plain_attributes_are_found() -> None:
    model = Holder(stem=nn.Linear(4, 4), first=Block(), second=Block(), third=Block(), head=nn.Linear(4, 2))
    assert find_blocks(model) == (model.first, model.second, model.third)


def test_lists_in_lists_and_dicts_are_looked_through() -> None:
    layers = nn.ModuleDict({"h": nn.ModuleList([nn.ModuleList([Attention(), Mlp()]) for _ in range(3)])})
    model = Holder(transformer=layers)
    assert list(find_blocks(model)) == of_class(model, Attention, Mlp)


def test_sequentials_of_leaves_are_blocks_when_repeated() -> None:
    units = [nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(nn.Sequential(*units), nn.Flatten(), nn.Linear(3, 2))
    assert find_blocks(model) == tuple(units)


@pytest.mark.parametrize("depths", [(2, 2, 2, 2), (3, 4, 6, 3)])
def test_stages_give_way_to_their_blocks(depths: tuple[int, ...]) -> None:
    stages = {f"layer{i}": nn.Sequential(*[Conv(2 * 2**i) for _ in range(depth)]) for i, depth in enumerate(depths, 1)}
    model = Holder(conv1=nn.Conv2d(3, 4, 7), bn1=nn.BatchNorm2d(4), **stages, fc=nn.Linear(32, 10))
    blocks = find_blocks(model)
    assert list(blocks) == of_class(model, Conv)
    assert len(blocks) == sum(depths)


def test_stage_classes_give_way_to_their_blocks() -> None:
    model = Holder(stages=nn.ModuleList([Stage(2 * 2**i, depth) for i, depth in enumerate((2, 2, 6, 2))]))
    assert list(find_blocks(model)) == of_class(model, Block)


def test_encoder_and_decoder_are_taken_together_in_module_order() -> None:
    encoder = Encoder(**{f"layer{i}": Block() for i in range(3)})
    decoder = Decoder(**{f"layer{i}": Conv(4) for i in range(2)})
    assert find_blocks(Holder(encoder=encoder, decoder=decoder)) == (*encoder.children(), *decoder.children())


def test_two_stacks_of_one_class_give_way_to_their_layers() -> None:
    model = Holder(
        encoder=Encoder(**{f"layer{i}": Block() for i in range(4)}),
        decoder=Encoder(**{f"layer{i}": Block() for i in range(4)}),
    )
    assert list(find_blocks(model)) == of_class(model, Block)


def test_heads_inside_blocks_are_not_taken() -> None:
    class Wide(Block):
        def __init__(self) -> None:
            super().__init__(8)
            self.heads = nn.ModuleList([Attention(2) for _ in range(4)])

    model = Holder(blocks=nn.Sequential(*[Wide() for _ in range(3)]))
    assert list(find_blocks(model)) == of_class(model, Wide)


def test_experts_inside_blocks_are_not_taken() -> None:
    blocks = [Holder(attn=Attention(), experts=nn.ModuleList([Mlp() for _ in range(8)])) for _ in range(6)]
    model = Encoder(blocks=nn.ModuleList(blocks))
    assert find_blocks(model) == tuple(blocks)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_torch_transformer() -> None:
    model = nn.Transformer(8, 2, num_encoder_layers=3, num_decoder_layers=2, dim_feedforward=16)
    assert list(find_blocks(model)) == of_class(model, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def test_u_net_takes_its_repeated_halves() -> None:
    class Down(Mlp):
        pass

    class Up(Mlp):
        pass

    model = Holder(inc=Mlp(), down1=Down(), down2=Down(), up1=Up(), up2=Up(), outc=nn.Conv2d(4, 1, 1))
    assert find_blocks(model) == (model.down1, model.down2, model.up1, model.up2)


def test_embeddings_are_not_blocks() -> None:
    embeds = {name: nn.Sequential(nn.Embedding(50_000, 4), nn.Dropout()) for name in ("source", "target")}
    model = Holder(**embeds, layers=nn.ModuleList([Block() for _ in range(2)]))
    assert list(find_blocks(model)) == of_class(model, Block)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 4),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(Leaf(4), Leaf(4), Leaf(4)),
        # A VGG: two Sequentials, but of different contents.
        Holder(features=nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), classifier=nn.Sequential(nn.Linear(4, 2))),
        # A U-Net whose parts are all different.
        Holder(down=Mlp(), middle=Block(), up=Attention(), out=nn.Linear(4, 1)),
        # Composite and repeated, but without parameters.
        nn.Sequential(nn.Sequential(nn.ReLU(), nn.ReLU()), nn.Sequential(nn.ReLU(), nn.ReLU())),
        # One block called three times: there is only one to switch.
        Holder(blocks=nn.ModuleList([Block()] * 3)),
    ],
    ids=["leaf", "linears", "leaves", "vgg", "u-net", "no parameters", "shared"],
)
def test_nothing_to_find(model: nn.Module) -> None:
    assert find_blocks(model) == ()


def test_a_block_in_two_lists_is_taken_once() -> None:
    block, other = Block(), Block()
    model = Holder(first=nn.ModuleList([block, other]), second=nn.ModuleList([block]))
    assert find_blocks(model) == (block, other)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_modules_are_left_out() -> None:
    scripted = [torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())) for _ in range(2)]
    assert find_blocks(nn.Sequential(*scripted)) == ()


def test_parametrized_layers_are_leaves_and_of_one_class() -> None:
    units = [nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Tanh()) for _ in range(3)]
    assert find_blocks(nn.Sequential(*units)) == tuple(units)
    assert find_blocks(nn.Sequential(*[weight_norm(nn.Linear(4, 4)) for _ in range(3)])) == ()


def test_lazy_modules_do_not_break_the_search() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4)) for _ in range(2)])
    assert find_blocks(model) == tuple(model)
