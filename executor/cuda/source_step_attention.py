"""Attention of one token within a decode step that goes in one launch: a block for each head, or a part of one."""

from __future__ import annotations

__all__ = ["ATTEND", "STEP_LARGEST_HEAD"]

STEP_LARGEST_HEAD = 256
"""Elements of a head that `attend_part` holds: twice four in each of 32 lanes."""

ATTEND = r"""
/* Where the sums of attention lie that are still to be merged: rows of dim, then the largest score of each head and its
   total. Half of them lie in one buffer and half in the other. */
struct Merge { float *one, *two; int size, half; };
__device__ __forceinline__ float* part_of(const Merge& m, int s) {
    return s < m.half ? m.one + (size_t)s * m.size : m.two + (size_t)(s - m.half) * m.size;
}

/* Attention of one head over positions [first, end), by all warps of a block. `group` lanes, a power of two, have a
   position together, four elements each (eight where head_dim is over 128). What each has found is merged in an order
   that never changes. `whole`: there is no other part, so it is divided by its total. */
template <int E>
__device__ __forceinline__ void attend_part(float* out, float* top_out, float* total_out, const float* q,
                                            const float* k, const float* v, int first, int end, int kv_dim,
                                            int head_dim, int group, float over_root, bool whole, float* merge) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, groups = 32 / group, i0 = 4 * (lane & (group - 1));
    float top = -INFINITY, total = 0.0f;
    float4 mine[E], acc[E];
#pragma unroll
    for (int e = 0; e < E; e++) {
        int i = i0 + 128 * e;
        bool has = i < head_dim;
        mine[e] = has ? make_float4(__ldcg(q + i), __ldcg(q + i + 1), __ldcg(q + i + 2), __ldcg(q + i + 3))
                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        acc[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    int stride = STEP_WARPS * groups, own = warp * groups + lane / group;
#pragma unroll 1
    for (int base = first; base + warp * groups < end; base += 4 * stride) {
        float score[4];
        float4 values[4][E];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int p = base + own + u * stride;
            score[u] = 0.0f;
#pragma unroll
            for (int e = 0; e < E; e++) {
                int i = i0 + 128 * e;
                values[u][e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (p < end && i < head_dim) {
                    float4 key = __ldcg((const float4*)(k + (size_t)p * kv_dim + i));
                    values[u][e] = __ldcg((const float4*)(v + (size_t)p * kv_dim + i));
                    score[u] += mine[e].x * key.x + mine[e].y * key.y + mine[e].z * key.z + mine[e].w * key.w;
                }
            }
        }
#pragma unroll 1
        for (int o = group >> 1; o; o >>= 1) {
#pragma unroll
            for (int u = 0; u < 4; u++) score[u] += __shfl_xor_sync(FULL, score[u], o);
        }
        float high = top;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            score[u] = base + own + u * stride < end ? score[u] * over_root : -INFINITY;
            high = fmaxf(high, score[u]);
        }
        float old = top == -INFINITY ? 0.0f : expf(top - high);
        total *= old;
#pragma unroll
        for (int e = 0; e < E; e++) { acc[e].x *= old; acc[e].y *= old; acc[e].z *= old; acc[e].w *= old; }
        top = high;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            float share = score[u] == -INFINITY ? 0.0f : expf(score[u] - high);
            total += share;
#pragma unroll
            for (int e = 0; e < E; e++) {
                acc[e].x += share * values[u][e].x; acc[e].y += share * values[u][e].y;
                acc[e].z += share * values[u][e].z; acc[e].w += share * values[u][e].w;
            }
        }
    }
#pragma unroll 1
    for (int o = group; o < 32; o <<= 1) {  /* the groups of a warp */
        float high = fmaxf(top, __shfl_xor_sync(FULL, top, o));
        float share = top == -INFINITY ? 0.0f : expf(top - high);
        top = high;
        total *= share;
        total += __shfl_xor_sync(FULL, total, o);
#pragma unroll
        for (int e = 0; e < E; e++) {
            float4& a = acc[e];
            a.x *= share; a.y *= share; a.z *= share; a.w *= share;
            a.x += __shfl_xor_sync(FULL, a.x, o); a.y += __shfl_xor_sync(FULL, a.y, o);
            a.z += __shfl_xor_sync(FULL, a.z, o); a.w += __shfl_xor_sync(FULL, a.w, o);
        }
    }
    float *tops = merge, *totals = merge + STEP_WARPS, *sums = merge + 2 * STEP_WARPS;
    if (lane == 0) { tops[warp] = top; totals[warp] = total; }
#pragma unroll
    for (int e = 0; e < E; e++) {
        int i = i0 + 128 * e;
        if (lane < group && i < head_dim) *(float4*)(sums + warp * head_dim + i) = acc[e];
    }
    step_sync();
    top = tops[lane % STEP_WARPS];
    float high = top;
    for (int o = STEP_WARPS / 2; o; o >>= 1) high = fmaxf(high, __shfl_xor_sync(FULL, high, o));
    float share = top == -INFINITY ? 0.0f : expf(top - high), all = share * totals[lane % STEP_WARPS];
    for (int o = STEP_WARPS / 2; o; o >>= 1) all += __shfl_xor_sync(FULL, all, o);
    float over_all = 1.0f / all;
#pragma unroll 1
    for (int i = threadIdx.x; i - lane < head_dim; i += @THREADS@) {
        float value = 0.0f;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) {
            float of_w = __shfl_sync(FULL, share, w);
            value += of_w * sums[w * head_dim + (i < head_dim ? i : 0)];
        }
        if (i < head_dim) out[i] = whole ? value * over_all : value;
    }
    if (threadIdx.x == 0 && !whole) { *top_out = high; *total_out = all; }
}

/* The parts of attention, merged, as x of the projection. `shares` takes what each part of a head counts for. */
__device__ __forceinline__ void stage_merged(float* xs, const Merge& m, int parts, int dim, int n_heads, int head_dim,
                                             float* shares) {
    for (int h = threadIdx.x; h < n_heads; h += @THREADS@) {
        float top[STEP_PARTS], total[STEP_PARTS], high = -INFINITY, all = 0.0f;
#pragma unroll
        for (int s = 0; s < STEP_PARTS; s++) {
            const float* at = part_of(m, s < parts ? s : 0) + dim + h;
            top[s] = __ldcg(at);
            total[s] = __ldcg(at + n_heads);
            high = fmaxf(high, top[s]);
        }
#pragma unroll
        for (int s = 0; s < STEP_PARTS; s++) {
            top[s] = s < parts ? expf(top[s] - high) : 0.0f;
            all += top[s] * total[s];
        }
        all = 1.0f / all;
#pragma unroll
        for (int s = 0; s < STEP_PARTS; s++) shares[h * STEP_PARTS + s] = top[s] * all;
    }
    step_sync();
    for (int i = threadIdx.x; i < dim; i += @THREADS@) {
        const float* mine = shares + i / (unsigned)head_dim * STEP_PARTS;
        float value = 0.0f;
#pragma unroll
        for (int s = 0; s < STEP_PARTS; s++)
            if (s < parts) value += mine[s] * __ldcg(part_of(m, s) + i);
        xs[i] = value;
    }
    step_sync();
}
"""
