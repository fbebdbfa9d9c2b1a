"""The kernels of the CUDA backend, as text: strict f32, no fast math, every sum in an order that never changes.

A warp, or a block where there are few rows, multiplies two rows of a weight at once, in 16-byte loads where addresses
and extents allow. Sums run over lanes
and are folded by shuffles, so their order differs from the processor's: tokens are compared, bits are not, across
devices. Attention keeps a running maximum, so it needs no scratch row. The `decode_*` kernels are several operations of
the program text in one launch. Positions come from memory where `pos` is given, so that a captured graph can be
replayed for every position. Order of operations: karpathy/llama2.c, run.c, commit 350e04f.
"""

from __future__ import annotations

from executor.cuda.kernels import NARROWED, PARAMETERS
from executor.cuda.source_attention import TILE
from executor.cuda.source_digest import DIGEST
from executor.cuda.source_narrow import narrow_source
from executor.cuda.source_step import step_source

__all__ = ["common_source", "names_of", "source_of", "steps_source"]

_COMMON = r"""
#define FULL 0xffffffffu
#define LANES 32
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

/* Four of x, which starts on any of four bytes: how an arena without padding lays activations out. */
__device__ __forceinline__ float4 four_of(const float* x, int j, bool even) {
    return even ? ((const float4*)x)[j] : make_float4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
}

__device__ __forceinline__ float warp_sum(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL, v, o);
    return v;
}

__device__ __forceinline__ float block_sum(float v, float* parts) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    v = warp_sum(v);
    if (lane == 0) parts[warp] = v;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < warps; i++) total += parts[i];
    return total;
}

/* The sums of all lanes, and what a norm divides by. Every thread gets both results. */
template <bool NORM>
__device__ __forceinline__ void fold(float& a, float& b, float ss, int n, int split) {
    a = warp_sum(a);
    b = warp_sum(b);
    if (NORM) ss = warp_sum(ss);
    if (split) {
        __shared__ float parts[3][32];
        int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
        if ((threadIdx.x & 31) == 0) { parts[0][warp] = a; parts[1][warp] = b; parts[2][warp] = ss; }
        __syncthreads();
        a = b = ss = 0.0f;
        for (int w = 0; w < warps; w++) { a += parts[0][w]; b += parts[1][w]; ss += parts[2][w]; }
    }
    if (NORM) {
        float scale = 1.0f / sqrtf(ss / (float)n + 1e-5f);
        a *= scale;
        b *= scale;
    }
}

/* Rows w0 and w1 against x, which NORM multiplies by the gain g. One warp does it, or (`split`) the whole block, which
   then shares the columns: a short row of blocks is done sooner that way. Every thread gets both results. */
template <bool NORM>
__device__ __forceinline__ void two_rows(const float* w0, const float* w1, const float* x, const float* g, int n,
                                         int split, float& a, float& b) {
    int lane = split ? threadIdx.x : threadIdx.x & 31, lanes = split ? blockDim.x : LANES;
    float ss = 0.0f;
    a = b = 0.0f;
    size_t bits = (size_t)w0 | (size_t)w1 | (NORM ? (size_t)g : 0);
    if ((bits & 15) == 0 && (n & 3) == 0) {
        const float4 *p0 = (const float4*)w0, *p1 = (const float4*)w1, *pg = (const float4*)g;
        bool even = ((size_t)x & 15) == 0;
        int m = n >> 2;
#pragma unroll 4
        for (int j = lane; j < m; j += lanes) {
            float4 u = __ldcs(p0 + j), v = __ldcs(p1 + j), t = four_of(x, j, even);
            if (NORM) {
                float4 h = pg[j];
                ss += t.x * t.x + t.y * t.y + t.z * t.z + t.w * t.w;
                t.x *= h.x; t.y *= h.y; t.z *= h.z; t.w *= h.w;
            }
            a += u.x * t.x + u.y * t.y + u.z * t.z + u.w * t.w;
            b += v.x * t.x + v.y * t.y + v.z * t.z + v.w * t.w;
        }
    } else {
        for (int j = lane; j < n; j += lanes) {
            float t = x[j];
            if (NORM) { ss += t * t; t *= g[j]; }
            a += w0[j] * t;
            b += w1[j] * t;
        }
    }
    fold<NORM>(a, b, ss, n, split);
}

/* Number of the pair of rows that this thread works on, and whether it is the one that writes. */
__device__ __forceinline__ int unit_of_grid(int split) {
    return split ? blockIdx.x : blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
}
__device__ __forceinline__ bool writes(int split) { return (split ? threadIdx.x : threadIdx.x & 31) == 0; }
"""

_STEPS = r"""
extern "C" __global__ void embed(float* x, const float* table, const int* tokens, int* fault, int vocab, int dim) {
    int t = blockIdx.x, token = tokens[t];
    if (token < 0 || token >= vocab) {
        if (threadIdx.x == 0) { fault[0] = 1; fault[1] = t; fault[2] = token; __threadfence_system(); }
        return;
    }
    for (int i = threadIdx.x; i < dim; i += blockDim.x) x[(size_t)t * dim + i] = table[(size_t)token * dim + i];
}

extern "C" __global__ void rmsnorm(float* out, const float* x, const float* weight, int n) {
    __shared__ float parts[32];
    const float* row = x + (size_t)blockIdx.x * n;
    float* to = out + (size_t)blockIdx.x * n;
    float ss = 0.0f;
    for (int j = threadIdx.x; j < n; j += blockDim.x) ss += row[j] * row[j];
    ss = block_sum(ss, parts);
    float scale = 1.0f / sqrtf(ss / (float)n + 1e-5f);
    for (int j = threadIdx.x; j < n; j += blockDim.x) to[j] = weight[j] * (scale * row[j]);
}

extern "C" __global__ void matvec(float* out, const float* x, const float* w, int d, int n, int split) {
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

/* out (rows, d) = x (rows, n) w (d, n)^T in tiles of 64 by 64; for calls too small for a library. */
extern "C" __global__ void matmul(float* out, const float* x, const float* w, int rows, int d, int n) {
    __shared__ float xs[16][65], ws[16][65];
    int tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    int i0 = blockIdx.x * 64, t0 = blockIdx.y * 64;
    float sum[4][4] = {};
    for (int j0 = 0; j0 < n; j0 += 16) {
        for (int e = threadIdx.x; e < 1024; e += 256) {
            int j = e & 15, r = e >> 4;
            xs[j][r] = (t0 + r < rows && j0 + j < n) ? x[(size_t)(t0 + r) * n + j0 + j] : 0.0f;
            ws[j][r] = (i0 + r < d && j0 + j < n) ? w[(size_t)(i0 + r) * n + j0 + j] : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < 16; j++)
            for (int a = 0; a < 4; a++)
                for (int b = 0; b < 4; b++) sum[a][b] += xs[j][ty + 16 * a] * ws[j][tx + 16 * b];
        __syncthreads();
    }
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            int t = t0 + ty + 16 * a, i = i0 + tx + 16 * b;
            if (t < rows && i < d) out[(size_t)t * d + i] = sum[a][b];
        }
}

extern "C" __global__ void rope(float* q, float* k, const float* cos, const float* sin, const int* pos, int pos0,
                                int dim, int kv_dim, int head_dim) {
    int t = blockIdx.y, i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= dim) return;
    int p = (pos ? pos[0] : pos0) + t, half = head_dim / 2, h = (i % head_dim) / 2;
    float c = cos[(size_t)p * half + h], s = sin[(size_t)p * half + h];
    float* row = q + (size_t)t * dim + i;
    float a = row[0], b = row[1];
    row[0] = a * c - b * s;
    row[1] = a * s + b * c;
    if (i < kv_dim) {
        row = k + (size_t)t * kv_dim + i;
        a = row[0]; b = row[1];
        row[0] = a * c - b * s;
        row[1] = a * s + b * c;
    }
}

#define PER_LANE 8  /* head_dim up to 256 */

/* A block per head and token; its warps share the positions and are merged in their order. */
extern "C" __global__ void attention(float* out, const float* q, const float* k_cache, const float* v_cache,
                                     const int* pos, int pos0, int n_heads, int n_kv_heads, int head_dim) {
    extern __shared__ float merge[];
    int h = blockIdx.x, t = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int n = (pos ? pos[0] : pos0) + t + 1, kv_dim = n_kv_heads * head_dim;
    size_t k0 = (size_t)(h / (n_heads / n_kv_heads)) * head_dim, q0 = ((size_t)t * n_heads + h) * head_dim;
    float root = sqrtf((float)head_dim), mine[PER_LANE], acc[PER_LANE], top = -INFINITY, total = 0.0f;
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        int i = lane + 32 * e;
        mine[e] = i < head_dim ? q[q0 + i] : 0.0f;
        acc[e] = 0.0f;
    }
    for (int p = warp; p < n; p += 4 * warps) {
        float score[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int at = p + u * warps;
            float s = 0.0f;
            if (at < n) {
                const float* row = k_cache + (size_t)at * kv_dim + k0;
#pragma unroll
                for (int e = 0; e < PER_LANE; e++) {
                    int i = lane + 32 * e;
                    if (i < head_dim) s += mine[e] * row[i];
                }
            }
            score[u] = s;
        }
#pragma unroll
        for (int u = 0; u < 4; u++) score[u] = p + u * warps < n ? warp_sum(score[u]) / root : -INFINITY;
        float high = fmaxf(fmaxf(fmaxf(score[0], score[1]), fmaxf(score[2], score[3])), top);
        float old = expf(top - high);
        if (top == -INFINITY) old = 0.0f;
        total *= old;
#pragma unroll
        for (int e = 0; e < PER_LANE; e++) acc[e] *= old;
        top = high;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int at = p + u * warps;
            if (at >= n) continue;
            float share = expf(score[u] - high);
            total += share;
            const float* row = v_cache + (size_t)at * kv_dim + k0;
#pragma unroll
            for (int e = 0; e < PER_LANE; e++) {
                int i = lane + 32 * e;
                if (i < head_dim) acc[e] += share * row[i];
            }
        }
    }
    float *tops = merge, *totals = merge + warps, *sums = merge + 2 * warps;
    if (lane == 0) { tops[warp] = top; totals[warp] = total; }
#pragma unroll
    for (int e = 0; e < PER_LANE; e++) {
        int i = lane + 32 * e;
        if (i < head_dim) sums[warp * head_dim + i] = acc[e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < head_dim; i += blockDim.x) {
        float high = tops[0], whole = 0.0f, value = 0.0f;
        for (int w = 1; w < warps; w++) high = fmaxf(high, tops[w]);
        for (int w = 0; w < warps; w++) {
            if (totals[w] == 0.0f && tops[w] == -INFINITY) continue;
            float share = expf(tops[w] - high);
            whole += share * totals[w];
            value += share * sums[w * head_dim + i];
        }
        out[q0 + i] = value / whole;
    }
}

extern "C" __global__ void add(float* x, const float* y, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += y[i];
}

extern "C" __global__ void swiglu(float* h1, const float* h3, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float v = h1[i]; h1[i] = v * (1.0f / (1.0f + expf(-v))) * h3[i]; }
}

/* The first largest; a NaN never wins, one at index 0 is never beaten. Of a decode step it notes bits and position. */
extern "C" __global__ void argmax(int* out, const float* logits, unsigned* bits, int* pos, int pos0, int n) {
    __shared__ float values[32];
    __shared__ int places[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    float best = -INFINITY;
    int at = 0x7fffffff;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = logits[i];
        if (v > best || (v == best && i < at)) { best = v; at = i; }
    }
    for (int o = 16; o; o >>= 1) {
        float v = __shfl_xor_sync(FULL, best, o);
        int i = __shfl_xor_sync(FULL, at, o);
        if (v > best || (v == best && i < at)) { best = v; at = i; }
    }
    if (lane == 0) { values[warp] = best; places[warp] = at; }
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < warps; w++)
        if (values[w] > best || (values[w] == best && places[w] < at)) { best = values[w]; at = places[w]; }
    float first = logits[0];
    if (first != first || at >= n) at = 0;
    out[0] = at;
    if (pos) { bits[pos[0] - pos0] = __float_as_uint(logits[at]); pos[0] += 1; }
}

/* The end of a step that computes no logits. */
extern "C" __global__ void advance(int* pos) { pos[0] += 1; }

extern "C" __global__ void rope_table(float* cos, float* sin, int positions, int half, int head_dim) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= positions * half) return;
    int p = i / half, h = i % half;
    float angle = (float)p * (1.0f / powf(10000.0f, (float)(2 * h) / (float)head_dim));
    cos[i] = cosf(angle);
    sin[i] = sinf(angle);
}
"""

_DECODE = r"""
/* rmsnorm, wq, wk, wv and rope: two rows a warp are one pair to rotate. k and v are the layer's caches. */
extern "C" __global__ void decode_qkv(float* q, float* k, float* v, const float* x, const float* gain, const float* wq,
                                      const float* wk, const float* wv, const float* cos, const float* sin,
                                      const int* pos, int dim, int kv_dim, int head_dim, int split) {
    int i = 2 * unit_of_grid(split);
    if (i >= dim + 2 * kv_dim) return;
    const float* w = wq;
    float* to = q;
    bool turned = true, cached = i >= dim;
    if (i >= dim + kv_dim) { i -= dim + kv_dim; w = wv; to = v; turned = false; }
    else if (i >= dim) { i -= dim; w = wk; to = k; }
    float a, b;
    two_rows<true>(w + (size_t)i * dim, w + (size_t)(i + 1) * dim, x, gain, dim, split, a, b);
    if (!writes(split)) return;
    int p = pos[0];
    if (cached) to += (size_t)p * kv_dim;
    if (turned) {
        int half = head_dim / 2, h = (i % head_dim) / 2;
        float c = cos[(size_t)p * half + h], s = sin[(size_t)p * half + h], r = a * c - b * s;
        b = a * s + b * c;
        a = r;
    }
    to[i] = a;
    to[i + 1] = b;
}

/* A projection added to the residual: wo, or w2. */
extern "C" __global__ void decode_add(float* x, const float* y, const float* w, int d, int n, int split) {
    int i = 2 * unit_of_grid(split);
    if (i >= d) return;
    int k = i + 1 < d ? i + 1 : i;
    float a, b;
    two_rows<false>(w + (size_t)i * n, w + (size_t)k * n, y, y, n, split, a, b);
    if (writes(split)) {
        x[i] += a;
        if (k != i) x[k] += b;
    }
}

/* rmsnorm, w1, w3 and swiglu: a warp has one row of each. */
extern "C" __global__ void decode_ffn(float* h, const float* x, const float* gain, const float* w1, const float* w3,
                                      int hidden, int n, int split) {
    int i = unit_of_grid(split);
    if (i >= hidden) return;
    float a, b;
    two_rows<true>(w1 + (size_t)i * n, w3 + (size_t)i * n, x, gain, n, split, a, b);
    if (writes(split)) h[i] = a * (1.0f / (1.0f + expf(-a))) * b;
}

/* rmsnorm and the classifier. */
extern "C" __global__ void decode_logits(float* logits, const float* x, const float* gain, const float* w, int d,
                                         int n, int split) {
    int i = 2 * unit_of_grid(split);
    if (i >= d) return;
    int k = i + 1 < d ? i + 1 : i;
    float a, b;
    two_rows<true>(w + (size_t)i * n, w + (size_t)k * n, x, gain, n, split, a, b);
    if (writes(split)) {
        logits[i] = a;
        if (k != i) logits[k] = b;
    }
}
"""


def common_source() -> str:
    """What every kernel's text begins with."""
    return _COMMON


def steps_source() -> str:
    """The operations one by one, f32."""
    return _STEPS


def source_of(dtype: str) -> str:
    """Everything that a device needs whose weights are read as `dtype`: fp32, bf16 or fp16."""
    plain = common_source() + _STEPS + _DECODE + TILE + DIGEST + step_source("fp32")
    return plain if dtype == "fp32" else plain + narrow_source(dtype, _DECODE) + step_source(dtype)


def names_of(dtype: str) -> list[str]:
    """The kernels in `source_of` it."""
    return [*PARAMETERS, *(f"{name}_{dtype}" for name in NARROWED if dtype != "fp32")]
