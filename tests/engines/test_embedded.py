"""The same replies from any number of workers, and memories that stay with their sites."""

from __future__ import annotations

import time

import torch
from toy_host import SITES, everywhere, site_data, toy_engine

from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import HostSpec
from fedaccord.engines.worker import WorkerProcess
from fedaccord.messages.message import Message


def assert_same(message, other):
    assert list(message.tensors) == list(other.tensors)
    assert all(torch.equal(t, other.tensors[name]) for name, t in message.tensors.items())
    assert (message.numbers, message.words) == (other.numbers, other.words)


def three_rounds(engine, sites):
    engine.restore({})
    model = Message({"w": torch.zeros(20), "running": torch.zeros(20)}, {"lr": 0.01})
    for _ in range(3):
        replies = engine.ask("train", dict.fromkeys(sites, model))
        w = torch.stack([reply.tensors["w"] for reply in replies.values()]).mean(0)
        model = Message({"w": w, "running": model.tensors["running"]}, {"lr": 0.01})
    return replies, engine.memories()


def test_any_number_of_workers_and_any_order_of_sites_give_the_same_bits(pool, here):
    replies, memories = three_rounds(here, SITES)
    assert list(replies) == SITES
    assert replies["site-3"].numbers["rounds"] == 3
    assert replies["site-3"].words == {"site": "site-3"}
    with toy_engine(1) as single:
        for other, order in [(single, SITES), (pool, SITES), (pool, SITES[::-1]), (here, SITES[3:] + SITES[:3])]:
            other_replies, other_memories = three_rounds(other, order)
            assert list(other_replies) == list(other_memories) == SITES
            for site in SITES:
                assert_same(other_replies[site], replies[site])
                assert_same(other_memories[site], memories[site])


def test_a_memory_comes_back_to_its_site_and_can_be_restored(either):
    assert either.memories() == {}
    three_rounds(either, SITES)
    kept = either.memories()
    assert kept["site-2"].tensors["path"].shape == (3,)
    assert kept["site-2"].words == {"last": "site-2"}

    either.restore({"site-2": kept["site-2"]})
    assert list(either.memories()) == ["site-2"]
    model = Message({"w": torch.zeros(20), "running": torch.zeros(20)}, {"lr": 0.01})
    replies = either.ask("train", {"site-1": model, "site-2": model})
    assert [reply.numbers["rounds"] for reply in replies.values()] == [1, 4]
    assert kept["site-2"].tensors["path"].shape == (3,)


def test_a_restored_memory_is_the_engines_own(either):
    memory = Message({"a": torch.zeros(2)})
    either.restore({"site-0": memory})
    memory.tensors["a"].add_(1)
    assert either.memories()["site-0"].tensors["a"].tolist() == [0, 0]


def test_a_host_shares_no_tensor_with_the_server_or_with_another_site(either):
    model = torch.zeros(3)
    briefs = {site: Message({"model": model}, {"n": 1}) for site in SITES}
    for _ in range(2):
        replies = either.ask("share", briefs)
        assert [reply.tensors["seen"].tolist() for reply in replies.values()] == [[1, 1, 1]] * 8
    assert model.tolist() == [0, 0, 0]
    assert briefs["site-0"].numbers == {"n": 1}
    last = either.ask("share", {"site-7": briefs["site-7"]})
    last["site-7"].tensors["model"].zero_()
    assert replies["site-0"].tensors["model"].eq(6).all()


def test_replies_stay_valid_when_blocks_are_used_again_and_grow(pool):
    asked = []
    for size in (10, 100_000, 1_000, 400_000):
        briefs = {site: Message({"a": torch.full((size,), float(i * size))}) for i, site in enumerate(SITES)}
        asked.append((briefs, pool.ask("echo", briefs)))
    for briefs, replies in asked:
        for site in SITES:
            assert_same(replies[site], briefs[site])


def test_a_reply_the_engine_is_slow_to_copy_is_not_overwritten_by_the_next(pool, monkeypatch):
    pool.start()
    receive = WorkerProcess.receive
    monkeypatch.setattr(WorkerProcess, "receive", lambda worker: (time.sleep(0.05), receive(worker))[1])
    briefs = {site: Message({"a": torch.full((1000,), float(i))}) for i, site in enumerate(SITES)}
    replies = pool.ask("echo", briefs)
    assert [reply.tensors["a"].unique().tolist() for reply in replies.values()] == [[i] for i in range(8)]


def test_all_kinds_of_tensors_cross_the_boundary(either):
    base = torch.arange(6).reshape(2, 3)
    dtypes = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
    tensors = {str(dtype): base.to(dtype).t() for dtype in dtypes}
    tensors |= {"number": torch.tensor(2.5), "empty": torch.zeros(0, 3), "model/layer.0/weight": torch.ones(1, 2, 3)}
    message = Message(tensors, {"inf": float("-inf"), "big": 2**60, "third": 1 / 3}, {"word": "\u00fc \U0001f600 \n"})
    for reply in either.ask("echo", dict.fromkeys(SITES, message)).values():
        assert_same(reply, message)
        assert all(reply.tensors[name].dtype == t.dtype for name, t in tensors.items())


def test_one_model_in_a_hundred_briefs_is_stored_once(crowd):
    model, sites = torch.randn(250_000), crowd.sites()
    briefs = {site: Message({"model": model.view(-1), "own": torch.tensor(i)}) for i, site in enumerate(sites)}
    replies = crowd.ask("echo", briefs)
    assert crowd._briefs.size < 4_000_000
    for site in sites:
        assert_same(replies[site], briefs[site])


def test_site_data_can_be_let_go_of_by_the_caller():
    data = site_data()
    expected = {name: tensor.clone() for name, tensor in data.items()}
    with EmbeddedEngine(HostSpec("toy_host:build", {}, data), SITES, 0) as lender:
        for tensor in data.values():
            tensor.zero_()
        assert all(torch.equal(lender.tensors[name], tensor) for name, tensor in expected.items())


def test_a_site_here_runs_in_one_thread_with_gradients_and_the_caller_gets_its_own_settings_back(either):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            where = either.ask("where", everywhere())["site-0"].numbers
            assert not torch.is_grad_enabled()
        assert (where["threads"], where["grad"]) == (1, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
