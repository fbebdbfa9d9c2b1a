"""Kernels that read weights, K and V as a checkpoint stores them: bf16, fp16, or f32 where the operation is new.

What is narrow is widened where it is used and every sum is f32; a cache is written rounded to nearest even. A token has
the same order of sums whether it comes alone or with others. Their text is that of the f32 kernels with other operands.
"""

from __future__ import annotations

from executor.cuda.parameters_stored import STORED
from executor.cuda.source import common_source, steps_source
from executor.cuda.source_digest import DIGEST
from executor.cuda.source_narrow import narrow_prelude

__all__ = ["stored_names", "stored_source"]

_ANY = ("stored_rmsnorm", "stored_bias", "stored_rope", "stored_column")

_SAME = r"""
typedef float narrow16;
__device__ __forceinline__ float widen(narrow16 v) { return v; }
"""

_STEPS = r"""
extern "C" __global__ void stored_rmsnorm_@T@(float* out, const float* x, const narrow16* weight, int eps_bits, int n) {
    __shared__ float parts[32];
    const float* row = x + (size_t)blockIdx.x * n;
    float* to = out + (size_t)blockIdx.x * n;
    float ss = 0.0f;
    for (int j = threadIdx.x; j < n; j += blockDim.x) ss += row[j] * row[j];
    ss = block_sum(ss, parts);
    float scale = 1.0f / sqrtf(ss / (float)n + __int_as_float(eps_bits));
    for (int j = threadIdx.x; j < n; j += blockDim.x) to[j] = widen(weight[j]) * (scale * row[j]);
}

extern "C" __global__ void stored_bias_@T@(float* x, const narrow16* row, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[(size_t)blockIdx.y * n + i] += widen(row[i]);
}

/* Element i of each head with element i + head_dim / 2. */
extern "C" __global__ void stored_rope_@T@(float* q, float* k, const float* cos, const float* sin, int pos0, int dim,
                                           int kv_dim, int head_dim) {
    int half = head_dim / 2, t = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * j >= dim) return;
    int h = j % half, i = (j / half) * head_dim + h;
    size_t at = (size_t)(pos0 + t) * half + h;
    float c = cos[at], s = sin[at];
    float* row = q + (size_t)t * dim + i;
    float a = row[0], b = row[half];
    row[0] = a * c - b * s;
    row[half] = b * c + a * s;
    if (i < kv_dim) {
        row = k + (size_t)t * kv_dim + i;
        a = row[0]; b = row[half];
        row[0] = a * c - b * s;
        row[half] = b * c + a * s;
    }
}

/* One pair's column of the tables. */
extern "C" __global__ void stored_column_@T@(float* cos, float* sin, int positions, int half, int column,
                                             int frequency_bits, int scale_bits) {
    int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= positions) return;
    float angle = (float)p * __int_as_float(frequency_bits), scale = __int_as_float(scale_bits);
    cos[(size_t)p * half + column] = cosf(angle) * scale;
    sin[(size_t)p * half + column] = sinf(angle) * scale;
}
"""

_NARROW = r"""
extern "C" __global__ void stored_embed_@T@(float* x, const narrow16* table, const int* tokens, int* fault, int vocab,
                                            int dim) {
    int t = blockIdx.x, token = tokens[t];
    if (token < 0 || token >= vocab) {
        if (threadIdx.x == 0) { fault[0] = 1; fault[1] = t; fault[2] = token; __threadfence_system(); }
        return;
    }
    for (int i = threadIdx.x; i < dim; i += blockDim.x) x[(size_t)t * dim + i] = widen(table[(size_t)token * dim + i]);
}

extern "C" __global__ void stored_matvec_@T@(float* out, const float* x, const narrow16* w, int d, int n, int split) {
    int i = 2 * unit_of_grid(split);
    if (i >= d) return;
    int k = i + 1 < d ? i + 1 : i;
    const float* row = x + (size_t)blockIdx.y * n;
    float a, b;
    two_rows<false>(w + (size_t)i * n, w + (size_t)k * n, row, row, n, split, a, b);
    if (writes(split)) {
        out[(size_t)blockIdx.y * d + i] = a;
        if (k != i) out[(size_t)blockIdx.y * d + k] = b;
    }
}

extern "C" __global__ void stored_store_@T@(narrow16* cache, const float* rows, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) cache[i] = narrowed(rows[i]);
}
"""


def _attention(dtype: str) -> str:
    """The attention kernel over narrow caches."""
    text = steps_source()
    text = text[text.index("#define PER_LANE") : text.index('extern "C" __global__ void add(')]
    for cache in ("k_cache", "v_cache"):
        text = text.replace(f"const float* {cache}", f"const narrow16* {cache}")
        text = text.replace(f"const float* row = {cache}", f"const narrow16* row = {cache}")
    return text.replace("row[i]", "widen(row[i])").replace("void attention(", f"void stored_attention_{dtype}(")


def stored_source(dtype: str) -> str:
    """Everything for operands of one type. The witnesses' kernels come along for their memory, which a module has."""
    plain = common_source() + DIGEST
    if dtype == "fp32":
        return plain + _SAME + _STEPS.replace("@T@", dtype)
    return plain + narrow_prelude(dtype) + (_STEPS + _NARROW).replace("@T@", dtype) + _attention(dtype)


def stored_names(dtype: str) -> list[str]:
    """The kernels in `stored_source` it."""
    return [f"{name}_{dtype}" for name in STORED if dtype != "fp32" or name in _ANY]
