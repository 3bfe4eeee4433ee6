"""A model for other programs: a fitted pipeline of scikit-learn, and an ONNX graph.

Both begin with (1) of `model.py`, so that they take the same rows as `Model.predict`: coded features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpmpi.errors import ConfigError
from dpmpi.model.model import Model
from dpmpi.problem.rows import Csr, Dense, scale_rows

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

_OPSET = 17
_IR = 8


def clip_norms(X: Any, bound: float) -> Any:
    """Return rows with their norms cut to `bound`, dense or scipy's sparse ones: a step of a pipeline."""
    if hasattr(X, "tocsr"):
        found = X.tocsr(copy=True).astype(np.float64)
        rows = Csr(found.indptr, found.indices, found.data, found.shape[1])
        scale_rows(rows, bound)
        found.data = rows.data
        return found
    dense = Dense(np.array(X, dtype=np.float64, order="C"))
    scale_rows(dense, bound)
    return dense.matrix


def to_sklearn(model: Model) -> Any:
    """Return a pipeline of two steps, `rows` and `model`, that predicts what the model does."""
    try:
        from sklearn.pipeline import Pipeline  # noqa: PLC0415 - slow
        from sklearn.preprocessing import FunctionTransformer  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("to_sklearn needs scikit-learn: pip install scikit-learn") from error

    step: Any = "passthrough"
    if np.isfinite(model.norm_bound):
        step = FunctionTransformer(clip_norms, kw_args={"bound": model.norm_bound}, accept_sparse=True)
        step.fit(np.zeros((1, len(model.coefficients))))
    return Pipeline([("rows", step), ("model", _estimator(model))])


def _estimator(model: Model) -> Any:
    """Return the fitted estimator: fitted to rows of zeros, then given the model's coefficients."""
    from sklearn import linear_model, svm  # noqa: PLC0415 - slow

    task, m = model.task, len(model.coefficients)
    C, b = model.coefficients.T, model.intercepts
    if task.classifies:
        K = len(task.classes)
        made = linear_model.LogisticRegression() if model.has_probabilities else svm.LinearSVC()
        made.fit(np.zeros((K, m)), np.arange(K))
        if task.kind == "multiclass" and K == 2:
            C, b = C[1:] - C[:1], b[1:] - b[:1]
        made.classes_ = model.classes
        made.coef_, made.intercept_ = C.copy(), b.copy()
        return made
    if task.kind == "counts":
        made = linear_model.PoissonRegressor().fit(np.zeros((2, m)), np.array([1.0, 2.0]))
    else:
        made = linear_model.HuberRegressor() if model.loss.startswith("huber") else linear_model.Ridge()
        made.fit(np.zeros((2, m)), np.array([0.0, 1.0]))
    made.coef_, made.intercept_ = C[0] * model.label_unit, float(model.intercept)
    return made


def to_onnx(model: Model) -> bytes:
    """Return an ONNX graph in float64: input `rows`; outputs `label`, `scores` and, where there are, `probabilities`.

    For numbers and counts `label` is the prediction in original units.
    """
    try:
        import onnx  # noqa: PLC0415 - optional
        from onnx import TensorProto, helper  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("to_onnx needs the package onnx: pip install 'dpmpi[onnx]'") from error

    m, K = model.coefficients.shape
    text = model.task.classifies and model.classes.dtype.kind == "U"
    nodes, constants = _nodes(model)
    kinds = {"scores": (TensorProto.DOUBLE, [None, K])}
    label = (TensorProto.STRING if text else TensorProto.INT64) if model.task.classifies else TensorProto.DOUBLE
    kinds = {"label": (label, [None]), **kinds}
    if model.has_probabilities:
        kinds["probabilities"] = (TensorProto.DOUBLE, [None, len(model.task.classes)])
    outputs = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in kinds.items()]
    given = helper.make_tensor_value_info("rows", TensorProto.DOUBLE, [None, m])
    graph = helper.make_graph(nodes, "dpmpi", [given], outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    for key, value in {"privacy": model.privacy.text, "version": model.version, "loss": model.loss}.items():
        entry = made.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def _nodes(model: Model) -> tuple[list[NodeProto], list[TensorProto]]:
    """Return the nodes of the graph, and its constants."""
    from onnx import helper, numpy_helper  # noqa: PLC0415 - optional

    constants: dict[str, Any] = {"C": model.coefficients, "b": model.intercepts}
    nodes: list[NodeProto] = []

    def node(kind: str, inputs: str, out: str, **how: Any) -> None:
        nodes.append(helper.make_node(kind, inputs.split(), [out], **how))

    rows = "rows"
    if np.isfinite(model.norm_bound):  # (1): divide by max(1, |a| / B)
        constants |= {"B": np.array(model.norm_bound), "one": np.array(1.0)}
        node("ReduceL2", "rows", "norms", axes=[1], keepdims=1)
        node("Div", "norms B", "excess")
        node("Max", "excess one", "divisor")
        node("Div", "rows divisor", "clipped")
        rows = "clipped"
    node("MatMul", f"{rows} C", "products")
    node("Add", "products b", "scores")
    if model.task.classifies:
        constants["classes"] = model.classes.astype(object if model.classes.dtype.kind == "U" else np.int64)
        _class_nodes(model, node, constants)
    else:
        constants["flat"] = np.array([-1])
        node("Reshape", "scores flat", "score")
        if model.task.kind == "counts":
            node("Exp", "score", "label")
        else:
            constants |= {"unit": np.array(model.label_unit), "middle": np.array(_middle(model))}
            node("Mul", "score unit", "scaled")
            node("Add", "scaled middle", "label")
    return nodes, [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]


def _class_nodes(model: Model, node: Any, constants: dict[str, Any]) -> None:
    """Add the nodes for classes: their probabilities, and the class."""
    if model.task.kind == "multiclass":
        if model.has_probabilities:
            node("Softmax", "scores", "probabilities", axis=1)
        node("ArgMax", "scores", "code", axis=1, keepdims=0)
    else:
        constants |= {"zero": np.array(0.0), "flat": np.array([-1])}
        if model.has_probabilities:
            node("Neg", "scores", "opposite")
            node("Sigmoid", "opposite", "first")
            node("Sigmoid", "scores", "second")
            node("Concat", "first second", "probabilities", axis=1)
        node("Greater", "scores zero", "positive")
        node("Cast", "positive", "codes", to=7)  # INT64
        node("Reshape", "codes flat", "code")
    node("Gather", "classes code", "label", axis=0)


def _middle(model: Model) -> float:
    return 0.5 * (model.task.low + model.task.high)
