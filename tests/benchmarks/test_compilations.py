"""Programs are counted in every process that has the problem, and only those that are built anew."""

import pickle

import jax
import jax.numpy as jnp
from benchmarks.probes.compilations import Counted, counted, processes, programs

import fedmime as fm


def test_programs_are_counted_once_each(tmp_path):
    file = tmp_path / "built"
    problem = counted(fm.models.logistic((2, 2, 1), 3), file)
    again = pickle.loads(pickle.dumps(Counted(print, str(file))))  # the same process does not count twice
    assert isinstance(again, Counted)
    before = programs(file)
    program = jax.jit(lambda x: x * 3 + 1)
    program(jnp.ones(3)).block_until_ready()
    built = programs(file) - before
    assert built >= 1
    program(jnp.ones(3)).block_until_ready()
    assert programs(file) - before == built
    assert processes(file) == 1
    assert problem.check({"x": jnp.ones((1, 2, 2, 1)), "y": jnp.zeros(1, int)}) is None
