"""Kernels for weights in bf16 or fp16: what is narrow are the weight matrices and what prefill multiplies them with.

Residual, K, V, attention, norms and every sum stay f32. No header of the toolkit is needed: bf16 is the upper half of
an f32 (rounded to nearest even), fp16 is converted by the processor's own instructions.
"""

from __future__ import annotations

__all__ = ["narrow_prelude", "narrow_source"]

_WIDEN = {
    "bf16": r"""
__device__ __forceinline__ float widen(narrow16 v) { return __uint_as_float((unsigned)v.bits << 16); }
__device__ __forceinline__ narrow16 narrowed(float f) {
    unsigned u = __float_as_uint(f);
    if (f != f) return narrow16{(unsigned short)((u >> 16) | 0x40u)};  /* a NaN stays one */
    return narrow16{(unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
""",
    "fp16": r"""
__device__ __forceinline__ float widen(narrow16 v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return f;
}
__device__ __forceinline__ narrow16 narrowed(float f) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
    return narrow16{bits};
}
""",
}

_ROWS = r"""
/* Eight narrow values of one load against eight of x. */
__device__ __forceinline__ void eight(uint4 u, const float* t, float& sum) {
    unsigned words[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum += widen(narrow16{(unsigned short)words[i]}) * t[2 * i];
        sum += widen(narrow16{(unsigned short)(words[i] >> 16)}) * t[2 * i + 1];
    }
}

/* See the f32 one. */
template <bool NORM>
__device__ __forceinline__ void two_rows(const narrow16* w0, const narrow16* w1, const float* x, const float* g, int n,
                                         int split, float& a, float& b) {
    int lane = split ? threadIdx.x : threadIdx.x & 31, lanes = split ? blockDim.x : LANES;
    float ss = 0.0f;
    a = b = 0.0f;
    size_t bits = (size_t)w0 | (size_t)w1 | (size_t)x | (NORM ? (size_t)g : 0);
    if ((bits & 15) == 0 && (n & 7) == 0) {
        const uint4 *p0 = (const uint4*)w0, *p1 = (const uint4*)w1;
        const float4 *px = (const float4*)x, *pg = (const float4*)g;
        int m = n >> 3;
#pragma unroll 4
        for (int j = lane; j < m; j += lanes) {
            uint4 u = __ldcs(p0 + j), v = __ldcs(p1 + j);
            float4 t0 = px[2 * j], t1 = px[2 * j + 1];
            float t[8] = {t0.x, t0.y, t0.z, t0.w, t1.x, t1.y, t1.z, t1.w};
            if (NORM) {
                float4 h0 = pg[2 * j], h1 = pg[2 * j + 1];
                float h[8] = {h0.x, h0.y, h0.z, h0.w, h1.x, h1.y, h1.z, h1.w};
#pragma unroll
                for (int i = 0; i < 8; i++) { ss += t[i] * t[i]; t[i] *= h[i]; }
            }
            eight(u, t, a);
            eight(v, t, b);
        }
    } else {
        for (int j = lane; j < n; j += lanes) {
            float t = x[j];
            if (NORM) { ss += t * t; t *= g[j]; }
            a += widen(w0[j]) * t;
            b += widen(w1[j]) * t;
        }
    }
    fold<NORM>(a, b, ss, n, split);
}
"""

_STEPS = r"""
extern "C" __global__ void embed_@T@(float* x, const narrow16* table, const int* tokens, int* fault,
                                     int vocab, int dim) {
    int t = blockIdx.x, token = tokens[t];
    if (token < 0 || token >= vocab) {
        if (threadIdx.x == 0) { fault[0] = 1; fault[1] = t; fault[2] = token; __threadfence_system(); }
        return;
    }
    for (int i = threadIdx.x; i < dim; i += blockDim.x) x[(size_t)t * dim + i] = widen(table[(size_t)token * dim + i]);
}

extern "C" __global__ void rmsnorm_@T@(narrow16* out, const float* x, const float* weight, int n) {
    __shared__ float parts[32];
    const float* row = x + (size_t)blockIdx.x * n;
    narrow16* to = out + (size_t)blockIdx.x * n;
    float ss = 0.0f;
    for (int j = threadIdx.x; j < n; j += blockDim.x) ss += row[j] * row[j];
    ss = block_sum(ss, parts);
    float scale = 1.0f / sqrtf(ss / (float)n + 1e-5f);
    for (int j = threadIdx.x; j < n; j += blockDim.x) to[j] = narrowed(weight[j] * (scale * row[j]));
}

extern "C" __global__ void swiglu_@T@(narrow16* h1, const narrow16* h3, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float v = widen(h1[i]); h1[i] = narrowed(v * (1.0f / (1.0f + expf(-v))) * widen(h3[i])); }
}

extern "C" __global__ void narrow_@T@(narrow16* out, const float* x, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = narrowed(x[i]);
}

/* Elements [first, last) of a tensor, in its own memory: f32 becomes narrow, from the start of the memory on. A launch
   writes where no element of it is read: elements [n, 2n) go to where elements [n / 2, n) were. The first ones are one
   block's (first 0), which reads them all before it writes. Finite values that become infinite are counted. */
extern "C" __global__ void narrow_in_place_@T@(void* at, unsigned long long* lost, long long first, long long last) {
    long long i = first + (long long)blockIdx.x * blockDim.x + threadIdx.x;
    bool mine = i < last;
    float f = mine ? ((const float*)at)[i] : 0.0f;
    narrow16 v = narrowed(f);
    if (first == 0) __syncthreads();
    if (!mine) return;
    ((narrow16*)at)[i] = v;
    if (isfinite(f) && !isfinite(widen(v))) atomicAdd(lost, 1ull);
}
"""


def narrow_prelude(dtype: str) -> str:
    """A narrow type, how it is widened and rounded to, and two rows of it against one of f32."""
    return "struct narrow16 { unsigned short bits; };\n" + _WIDEN[dtype] + _ROWS


def narrow_source(dtype: str, decode: str) -> str:
    """The kernels of one narrow type; `decode` is the text of the f32 decode kernels, whose weights become narrow."""
    text = decode
    for weight in ("wq", "wk", "wv", "w1", "w3", "w"):
        text = text.replace(f"const float* {weight},", f"const narrow16* {weight},")
    text = text.replace("const float* w = wq;", "const narrow16* w = wq;")
    for kernel in ("decode_qkv", "decode_add", "decode_ffn", "decode_logits"):
        text = text.replace(f"void {kernel}(", f"void {kernel}_{dtype}(")
    return narrow_prelude(dtype) + _STEPS.replace("@T@", dtype) + text
