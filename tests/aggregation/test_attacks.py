"""Attacks: who attacks, what attackers send, and that nobody else's message changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.aggregation import attacks, encoder, gate, robust
from fedmime.aggregation.combiner import mean
from fedmime.hyperparameters import at_round
from refusals.refusal import NOT_FINITE, NOT_NUMBERS, Wrong, check_all, choices, counts, numbers, wrong

N = 20
SEED = 0  # the first of which exactly a fifth of twenty clients are attackers
KEY = jax.random.key(0)


@jax.jit
def _sent(attack: attacks.Attack, messages: list[jax.Array], clients: jax.Array) -> list[jax.Array]:
    """What the server decodes of the messages [clients, ...] of clients at the given positions."""

    def send(values: list[jax.Array], client: jax.Array) -> list[jax.Array]:
        sender = encoder.Sender(encoder.UPDATE, client, KEY)
        like = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]
        return encoder.decode_chain([attack], encoder.encode_chain([attack], values, sender), like, sender)

    return jax.vmap(send)(messages, clients)


def _messages(dtype: str = "float64") -> list[jax.Array]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(1, 0.3, size=(N, *shape)), dtype) for shape in ((3, 2), (4,))]


def _flat(messages: list[jax.Array]) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).reshape(N, -1) for leaf in messages], axis=1)


def _play(kind: str, dtype: str = "float64", **options) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Messages before and after an attack [clients, entries], and who attacked."""
    messages = _messages(dtype)
    sent = _sent(attacks.attack(kind, seed=SEED, **options), messages, jnp.arange(N))
    assert all(leaf.dtype == dtype for leaf in sent)
    who = attacks.attackers(N, options.get("share", 0.2), SEED)
    return _flat(messages), _flat(sent), who


# what attackers send, in NumPy, of their messages [attackers, entries] and the scale
PLAIN = {
    "sign_flip": lambda z, scale: -scale * z,
    "scaled": lambda z, scale: scale * z,
    "nan": lambda z, scale: np.full_like(z, np.nan),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("scale", [None, 0.5])
def test_what_attackers_send(kind: str, dtype: str, scale: float | None) -> None:
    before, after, who = _play(kind, dtype, scale=scale)
    assert who.sum() == N / 5
    np.testing.assert_array_equal(after[~who], before[~who])
    np.testing.assert_allclose(after[who], PLAIN[kind](before[who], 10 if scale is None else scale), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shifting_attackers_collude(dtype: str) -> None:
    """They send one direction, as long as their own messages times the scale."""
    before, after, who = _play("shift", dtype, scale=0.5)
    np.testing.assert_array_equal(after[~who], before[~who])
    lengths = np.linalg.norm(after[who], axis=1, keepdims=True)
    np.testing.assert_allclose(lengths, np.linalg.norm(before[who], axis=1, keepdims=True) / 2, rtol=1e-6)
    directions = after[who] / lengths
    np.testing.assert_allclose(directions, directions[:1].repeat(len(directions), axis=0), atol=1e-6)
    other = _flat(_sent(attacks.attack("shift", share=1, seed=SEED + 1), _messages(dtype), jnp.arange(N)))[0]
    assert abs(directions[0] @ other / np.linalg.norm(other)) < 0.99  # another seed, another direction


def test_the_set_depends_on_seed_and_position_alone() -> None:
    who = attacks.attackers(1000, 0.3, 5)
    assert who.dtype == bool
    np.testing.assert_array_equal(attacks.attackers(100, 0.3, 5), who[:100])  # not on the population
    assert (attacks.attackers(1000, 0.6, 5) >= who).all()  # larger shares add to the set
    assert (attacks.attackers(1000, 0.3, 6) != who).any()
    positions = np.array([999, 3, 17, 500, 4])  # in any order, traced
    traced = jax.jit(jax.vmap(lambda i: attacks._is_attacker(i, 0.3, 5)))(jnp.asarray(positions))
    np.testing.assert_array_equal(traced, who[positions])
    assert not attacks.attackers(1000, 0).any()
    assert attacks.attackers(1000, 1).all()
    assert attacks.attackers(0).shape == (0,)


def test_the_set_is_the_same_in_single_precision() -> None:
    wide = attacks.attackers(1000, 0.2, 2**40)
    with jax.enable_x64(False):
        np.testing.assert_array_equal(attacks.attackers(1000, 0.2, 2**40), wide)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_share_is_met_on_average(share: float) -> None:
    n = 20_000
    assert abs(attacks.attackers(n, share).mean() - share) < 4 * np.sqrt(share * (1 - share) / n)


@pytest.mark.parametrize("kind", attacks.KINDS)
def test_gradients_are_attacked_and_broadcasts_are_not(kind: str) -> None:
    everybody = attacks.attack(kind, share=1)
    assert not everybody.compresses
    assert not everybody.unbiased
    message = [leaf[0] for leaf in _messages()]
    sent = everybody.encode(message, encoder.Sender(encoder.GRADIENT, 3, KEY))
    assert all((a != b).any() for a, b in zip(sent.values, message, strict=True))
    sent = everybody.encode(message, encoder.Sender(encoder.BROADCAST, encoder.SERVER, KEY))
    assert all((a == b).all() for a, b in zip(sent.values, message, strict=True))


def test_a_schedule_turns_an_attack_on() -> None:
    scheduled = attacks.attack("scaled", share=lambda t: 0.2 if t >= 3 else 0.0, seed=SEED)
    before = _flat(_messages())
    for t, attacked in ((2, 0), (3, 4)):
        after = _flat(_sent(at_round(scheduled, t), _messages(), jnp.arange(N)))
        assert (before != after).any(axis=1).sum() == attacked


_combine = jax.jit(lambda combiner, messages: combiner.combine(messages, jnp.ones(N)))


@pytest.mark.parametrize("kind", ["sign_flip", "scaled", "shift"])
def test_defences_hold_and_the_mean_does_not(kind: str) -> None:
    """Fault 44, with what the attack really sends."""
    before, after, who = _play(kind, scale=10)
    honest = before[~who].mean(0)
    error = lambda combiner: np.linalg.norm(_combine(combiner, jnp.asarray(after)) - honest)
    assert error(mean()) > np.linalg.norm(honest)
    for combiner in (robust.median(), robust.trimmed_mean(0.25), robust.geometric_median(), robust.krum(4, 10)):
        assert error(combiner) < 0.2 * np.linalg.norm(honest)


def test_the_gate_finds_nan_and_what_is_too_long() -> None:
    for kind, reason in (("nan", "not_finite"), ("scaled", "norm")):
        _, after, _ = _play(kind)
        judged = jax.vmap(lambda z: gate.judge(z, 3 * np.sqrt(10)))(jnp.asarray(after))
        assert gate.counts(judged) == {"accepted": 16, reason: 4}


def test_labels_are_flipped_and_nothing_else() -> None:
    columns = {"x": np.ones((4, 2), np.float32), "y": np.array([0, 1, 8, 9], np.uint8)}
    flipped = attacks.flip_labels(columns, 10)
    assert flipped["x"] is columns["x"]
    assert flipped["y"].dtype == np.uint8
    assert flipped["y"].tolist() == [9, 8, 1, 0]
    assert columns["y"].tolist() == [0, 1, 8, 9]
    assert attacks.flip_labels({"label": columns["y"]}, 10, field="label")["label"].tolist() == [9, 8, 1, 0]


SHARES = [-0.1, 1.5, *NOT_FINITE, *NOT_NUMBERS]
WRONG: list[Wrong] = [
    *choices("attack", attacks.attack, "kind"),
    *numbers("attack", attacks.attack, {"scale": "positive"}, ["0.1", True, [0.1]], kind="scaled"),
    *counts("attack", attacks.attack, "seed", 0, kind="nan"),
    *counts("attackers", attacks.attackers, "seed", 0, n=3),
    *counts("attackers", attacks.attackers, "n", 0),
    *(wrong(lambda v=v: attacks.attack("nan", v), "share", v, "attack.share") for v in SHARES),
    *(wrong(lambda v=v: attacks.attackers(3, v), "share", v, "attackers.share") for v in SHARES),
    *counts("flip_labels", attacks.flip_labels, "classes", 1, columns={"y": np.zeros(3, int)}),
]


def test_wrong_arguments_are_refused() -> None:
    check_all(WRONG)
