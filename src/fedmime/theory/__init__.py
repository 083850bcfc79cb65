"""The paper's theory on problems where everything is known."""

from fedmime.theory.quadratics import Quadratics, quadratics

__all__ = ["Quadratics", "quadratics"]
