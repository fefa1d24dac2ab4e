"""Ways to fold a source into a merged model."""

from __future__ import annotations

from collections.abc import Callable

from grasp_core.methods import grasp
from grasp_core.refinement import Refined
from grasp_core.workbench import Workbench

METHODS: dict[str, Callable[[Workbench], Refined]] = {"grasp": grasp.grasp}
