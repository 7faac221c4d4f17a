"""What crosses the boundary survives it bit for bit; anything else is refused in one sentence."""

import contextlib
import io
import json
import math
import pickle
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from fedaccord.errors import MessageError
from fedaccord.messages.message import Failure, Message, encoded_size, from_bytes, to_bytes

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
]
NAMES = st.text(max_size=8).filter(lambda name: name not in ("__metadata__", "fedaccord.empty"))
SHAPES = st.lists(st.integers(0, 3), max_size=3)
NUMBERS = st.dictionaries(st.text(max_size=8), st.integers() | st.floats())
WORDS = st.dictionaries(st.text(max_size=8), st.text(max_size=20))


@st.composite
def tensors(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = 50 * torch.randn(draw(SHAPES), generator=generator)
    return values.to(draw(st.sampled_from(DTYPES)))


def bits(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


@given(st.dictionaries(NAMES, tensors(), max_size=4), NUMBERS, WORDS)
def test_a_message_comes_back_as_it_was(named, numbers, words):
    back = from_bytes(to_bytes(Message(named, numbers, words)))
    assert {name: (t.dtype, t.shape, bits(t)) for name, t in back.tensors.items()} == {
        name: (t.dtype, t.shape, bits(t)) for name, t in named.items()
    }
    # repr tells 1 from 1.0 and finds NaN equal to itself
    assert {name: repr(value) for name, value in back.numbers.items()} == {n: repr(v) for n, v in numbers.items()}
    assert back.words == words


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(dtype):
    tensor = torch.tensor([[0, 1, 0], [1, 1, 0]]).to(dtype)
    back = from_bytes(to_bytes(Message({"t": tensor, "one": tensor[0, 0], "none": tensor[:0]}))).tensors
    assert back["t"].dtype == dtype
    assert torch.equal(back["t"], tensor)
    assert back["one"].shape == ()
    assert back["none"].shape == (0, 3)


def test_an_empty_message_is_a_message():
    assert Message().is_empty()
    back = from_bytes(to_bytes(Message()))
    assert back == Message()
    assert back.is_empty()


@pytest.mark.parametrize(
    "message", [Message({"t": torch.zeros(0)}), Message(numbers={"n": 0}), Message(words={"w": ""})]
)
def test_a_message_with_anything_in_it_is_not_empty(message):
    assert not message.is_empty()


def test_nan_and_infinity_travel_as_numbers_so_that_the_check_can_name_them():
    back = from_bytes(to_bytes(Message({"t": torch.tensor([math.nan, -math.inf])}, {"loss": math.nan, "n": math.inf})))
    assert math.isnan(back.numbers["loss"])
    assert back.numbers["n"] == math.inf
    assert back.tensors["t"].isnan().tolist() == [True, False]


def test_a_number_beyond_every_float_is_still_an_integer():
    assert from_bytes(to_bytes(Message(numbers={"n": 10**400}))).numbers == {"n": 10**400}


def test_tensors_that_share_memory_travel_apart():
    # A method may keep the last model next to the current one, and both may be the same tensor.
    model = torch.arange(6.0)
    back = from_bytes(to_bytes(Message({"model": model, "last": model, "part": model[2:5], "rows": model.view(2, 3)})))
    assert back.tensors["last"].tolist() == model.tolist()
    assert back.tensors["part"].tolist() == [2, 3, 4]
    back.tensors["model"].zero_()
    assert back.tensors["last"].tolist() == model.tolist()


def test_a_tensor_of_another_memory_format_keeps_its_values():
    image = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    assert torch.equal(from_bytes(to_bytes(Message({"t": image, "turned": image.mT}))).tensors["turned"], image.mT)


def test_a_gradient_does_not_travel():
    weight = torch.ones(2, requires_grad=True)
    assert not from_bytes(to_bytes(Message({"w": weight}))).tensors["w"].requires_grad


def test_tensors_are_put_and_selected_by_prefix():
    message = Message({"model/w": torch.zeros(1), "modelling": torch.ones(1)})
    message.put("extra", {"momentum/w": torch.ones(2)})
    assert list(message.select("model")) == ["w"]
    assert list(message.select("extra")) == ["momentum/w"]
    assert message.select("nothing") == {}


@pytest.mark.parametrize(
    ("numbers", "kind"), [({"flag": True}, "bool"), ({"flag": "1"}, "str"), ({"flag": None}, "NoneType")]
)
def test_a_number_is_an_int_or_a_float_and_a_bool_is_neither(numbers, kind):
    with pytest.raises(MessageError, match=f"number 'flag' of a message is a {kind}, not an int or a float"):
        to_bytes(Message(numbers=numbers))


def test_a_word_is_a_string():
    with pytest.raises(MessageError, match="word 'run' of a message is a int, not a string"):
        to_bytes(Message(words={"run": 3}))


@pytest.mark.parametrize("name", ["__metadata__", "fedaccord.empty"])
def test_names_the_format_needs_for_itself_are_refused(name):
    with pytest.raises(MessageError, match=f"cannot be named '{name}'"):
        to_bytes(Message({name: torch.zeros(1), "w": torch.zeros(1)}))


@given(st.binary(max_size=200))
def test_garbage_is_a_message_error(data):
    with pytest.raises(MessageError, match="not a FedAccord message"):
        from_bytes(data)


def test_a_message_cut_anywhere_or_with_a_tail_is_a_message_error():
    data = to_bytes(Message({"w": torch.arange(3.0)}, {"round": 1}, {"run": "r"}))
    for length in range(len(data)):
        with pytest.raises(MessageError):
            from_bytes(data[:length])
    with pytest.raises(MessageError):
        from_bytes(data + b"\0")


def test_a_message_with_flipped_bytes_is_a_message_or_a_message_error():
    data = to_bytes(Message({"w": torch.arange(3.0)}, {"round": 1}, {"run": "r"}))
    draw = random.Random(0)
    for _ in range(500):
        spoiled = bytearray(data)
        spoiled[draw.randrange(len(data))] = draw.randrange(256)
        with contextlib.suppress(MessageError):
            from_bytes(bytes(spoiled))


class Mine:
    """Would write to a list when unpickled."""

    sprung = []

    def __reduce__(self):
        return self.sprung.append, (1,)


def test_a_pickle_is_a_message_error_and_is_not_run():
    file = io.BytesIO()
    torch.save({"w": torch.zeros(3)}, file)
    for data in (pickle.dumps({"w": [0.0]}), pickle.dumps(Mine()), file.getvalue()):
        with pytest.raises(MessageError, match="not a FedAccord message"):
            from_bytes(data)
    assert Mine.sprung == []


def test_a_plain_safetensors_file_is_not_a_message():
    with pytest.raises(MessageError, match="not a FedAccord message"):
        from_bytes(save({"w": torch.zeros(3)}))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ('{"samples": "many"}', "{}"),
        ('{"samples": true}', "{}"),
        ('{"samples": null}', "{}"),
        ('{"samples": [1]}', "{}"),
        ("[1]", "{}"),
        ("{}", '{"run": 1}'),
        ("{}", '["run"]'),
        ("{}", "null"),
        ("[" * 100_000, "{}"),
    ],
)
def test_a_message_that_somebody_wrote_by_hand_is_checked_as_well(numbers, words):
    good = from_bytes(save({"w": torch.zeros(3)}, metadata={"fedaccord": '{"numbers": {}, "words": {}}'}))
    assert good.tensors["w"].tolist() == [0, 0, 0]
    with pytest.raises(MessageError, match="not a FedAccord message"):
        from_bytes(save({"w": torch.zeros(3)}, metadata={"fedaccord": f'{{"numbers": {numbers}, "words": {words}}}'}))


def test_what_is_on_the_wire_can_be_read_without_us():
    data = to_bytes(Message({"w": torch.zeros(3)}, {"round": 2}, {"run": "r"}))
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert json.loads(header["__metadata__"]["fedaccord"]) == {"numbers": {"round": 2}, "words": {"run": "r"}}
    assert header["w"]["shape"] == [3]


def test_equal_messages_are_equal_bytes_and_come_back_in_the_same_order():
    # So that the files of two equal runs are equal; the format itself would write its header in a random order.
    message = Message({f"t{i}": torch.full((i,), 1.0) for i in range(9)}, {"a": 1, "b": 2}, {"c": "d", "e": "f"})
    data = to_bytes(message)
    for _ in range(20):
        assert to_bytes(message) == data
        assert list(from_bytes(data).tensors) == list(message.tensors)


class TestSize:
    DTYPES = (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.float32,
        torch.float64,
        torch.int64,
    )

    @given(
        forms=st.dictionaries(
            st.text(min_size=1, max_size=8).filter(lambda name: name not in ("fedaccord.empty", "__metadata__")),
            st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 40), max_size=3)),
            max_size=4,
        ),
        words=st.dictionaries(st.text(max_size=4), st.text(max_size=12), max_size=3),
        number=st.floats(allow_nan=False, allow_infinity=False),
    )
    def test_it_is_that_of_the_bytes(self, forms, words, number):
        tensors = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in forms.items()}
        message = Message(tensors, {"n": number}, words)
        assert encoded_size(message) == len(to_bytes(message))

    def test_a_dtype_that_is_seldom_seen(self):
        message = Message({"x": torch.zeros(3, dtype=torch.float8_e5m2fnuz)})
        assert encoded_size(message) == len(to_bytes(message))


class TestFailure:
    def test_a_reason_cannot_pass_for_another_line_of_the_log(self):
        failure = Failure("a", "train", "broken\n12:00 round 3: all is well\x1b[2J")
        assert failure.reason == "broken 12:00 round 3: all is well [2J"

    def test_a_reason_without_end_is_cut(self):
        reason = Failure("a", "train", "x" * 100_000).reason
        assert len(reason) == 500
        assert reason.endswith("x…")
        assert Failure("a", "train", "y" * 500).reason == "y" * 500
