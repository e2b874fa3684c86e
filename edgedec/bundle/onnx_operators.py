"""The operators that graphs from outside may use: arithmetic on their inputs; none reads a file or runs code."""

from __future__ import annotations

# What `export/heads.py`, `export/latent_head.py` and `export/drafts` write, and nothing that makes a size of a value.
_HEAD = """
Add Concat Div Exp Gather Gelu Gemm Identity LSTM LayerNormalization LogSoftmax MatMul Mul Reshape
SimplifiedLayerNormalization Sub Tanh TopK Unsqueeze
"""

# What exporters of decoders write: optimum, torch, our own.
_PLAIN = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
Cast CastLike Ceil Celu Clip Compress Concat Constant ConstantOfShape Conv Cos Cosh CumSum
DepthToSpace DequantizeLinear Div DynamicQuantizeLinear
Einsum Elu Equal Erf Exp Expand EyeLike
Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Greater GreaterOrEqual GroupNormalization
HardSigmoid HardSwish Hardmax Identity If IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop
MatMul MatMulInteger Max MaxPool Mean Min Mish Mod Mul Neg NonZero Not
OneHot Or PRelu Pad Pow QLinearMatMul QuantizeLinear RMSNormalization Range Reciprocal
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
Relu Reshape RotaryEmbedding Round Scan ScatterElements ScatterND Selu Shape Sigmoid Sign SimplifiedLayerNormalization
Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish
Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
_MICROSOFT = """
Attention BiasGelu BiasSplitGelu BiasSoftmax DecoderMaskedMultiHeadAttention DynamicQuantizeMatMul
EmbedLayerNormalization FastGelu FusedConv FusedGemm FusedMatMul FusedMatMulActivation GatherBlockQuantized Gelu
GemmaRotaryEmbedding GroupQueryAttention MatMulBnb4 MatMulInteger16 MatMulIntegerToFloat MatMulNBits MoE
MultiHeadAttention PackedAttention QAttention QGemm QLinearAdd QLinearConcat QLinearMul QLinearSigmoid QLinearSoftmax
QMoE QuickGelu RotaryEmbedding SimplifiedLayerNormalization SkipLayerNormalization
SkipSimplifiedLayerNormalization SparseAttention CausalConvWithState LinearAttention
"""
HEAD = frozenset([f":{name}" for name in _HEAD.split()] + ["com.microsoft:MatMulNBits", "com.microsoft:QuickGelu"])
DECODER = frozenset(
    [f":{name}" for name in _PLAIN.split()]
    + [f"com.microsoft:{name}" for name in _MICROSOFT.split()]
    # Quantized operators of older exporters.
    + [f"com.microsoft:{name}" for name in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")]
)
