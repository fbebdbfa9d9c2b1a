"""A whole decode step as one launch: every block stays for all layers, and the blocks meet between the parts of one.

A step is bound by the bytes of the weights, and cut into launches it also waits at the end of each for the last block,
and at the start of the next for its first bytes. Here the weights come through queues that run ahead
(`executor.cuda.source_step_queue`). Sums are added up in an order that never changes. What other blocks wrote is read
past the first-level cache. All blocks have to run at once, so the launch has to be a cooperative one.
"""

from __future__ import annotations

from executor.cuda.source_step_attention import ATTEND
from executor.cuda.source_step_queue import QUEUE, WEIGHTS

__all__ = ["STEP_BLOCKS", "STEP_FEEDERS", "STEP_PARTS", "STEP_QUEUE_BYTES", "STEP_THREADS", "step_source"]

STEP_THREADS = 512
"""Threads of a block that multiply."""
STEP_FEEDERS = 4
"""Warps beside them, which ask for weights."""
STEP_PARTS = 4
"""Parts of the positions of a head at most, each attended to by a block of its own."""
STEP_BLOCKS = 1024
"""Blocks that a step can have at most."""

_SIZES = {
    "THREADS": STEP_THREADS,
    "FEEDERS": STEP_FEEDERS,
    "PARTS": STEP_PARTS,
    "BLOCKS": STEP_BLOCKS,
    "DEPTH": 4,
    "CHUNK": 64,
    "LEAST": 64,
    "BATCH": 128,
}
STEP_QUEUE_BYTES = STEP_THREADS // 32 * _SIZES["DEPTH"] * 32 * _SIZES["CHUNK"]
"""Shared memory of the queues of a block."""

_MEET = r"""
#define STEP_WARPS (@THREADS@ / 32)
#define STEP_FEEDERS @FEEDERS@
#define STEP_PARTS @PARTS@
#define STEP_DEPTH @DEPTH@  /* chunks of a queue */
#define STEP_CHUNK @CHUNK@  /* pieces of 16 bytes of each of two rows, which come at once */
#define STEP_LEAST @LEAST@  /* pieces that a warp has of a row at least, where warps share it */
#define STEP_BATCH @BATCH@  /* units of a block that are finished at once */

/* Where the blocks of a step meet: how many came, over all meetings, and how many left. Both are 0 between steps. */
extern "C" { __device__ unsigned met[2]; __device__ unsigned long long bests[@BLOCKS@]; }

/* The warps that multiply wait for each other; those that feed them do not stop. */
__device__ __forceinline__ void step_sync() { asm volatile("bar.sync 1, @THREADS@;" ::: "memory"); }

/* Wait for every block, the `times`-th time. What each wrote before, all may read after. */
__device__ __forceinline__ void meet(unsigned times) {
    step_sync();
    if (threadIdx.x == 0) {
        unsigned came, wanted = times * gridDim.x;
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(met) : "memory");
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(came) : "l"(met) : "memory");
        while ((int)(came - wanted) < 0);
    }
    step_sync();
}

/* A number that is larger for a larger logit, and for the first of equal ones; a NaN's is below all. */
__device__ __forceinline__ unsigned long long rank_of(float v, int index) {
    if (v != v) return 0;
    unsigned u = __float_as_uint(v == 0.0f ? 0.0f : v);
    u = u >> 31 ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (0xffffffffu - (unsigned)index);
}

__device__ __forceinline__ unsigned long long highest(unsigned long long rank) {
    for (int o = 16; o; o >>= 1) {
        unsigned long long other = __shfl_xor_sync(FULL, rank, o);
        if (other > rank) rank = other;
    }
    return rank;
}

/* Hand on the best rank of a block; whether it is the last one to leave. */
__device__ __forceinline__ bool leave(unsigned long long best, unsigned long long* ranks) {
    __shared__ int is_last;
    best = highest(best);
    if ((threadIdx.x & 31) == 0) ranks[threadIdx.x >> 5] = best;
    step_sync();
    if (threadIdx.x == 0) {
        for (int w = 1; w < STEP_WARPS; w++) if (ranks[w] > best) best = ranks[w];
        bests[blockIdx.x] = best;
        __threadfence();
        is_last = atomicAdd(met + 1, 1u) == gridDim.x - 1;
    }
    step_sync();
    return is_last;
}

/* The best rank of all blocks, for thread 0 of the last one. */
__device__ __forceinline__ unsigned long long best_of_all(unsigned long long* ranks) {
    unsigned long long best = 0;
    __threadfence();
    for (int b = threadIdx.x; b < gridDim.x; b += @THREADS@) {
        unsigned long long rank = __ldcg(bests + b);
        if (rank > best) best = rank;
    }
    best = highest(best);
    if ((threadIdx.x & 31) == 0) ranks[threadIdx.x >> 5] = best;
    step_sync();
    if (threadIdx.x == 0)
        for (int w = 1; w < STEP_WARPS; w++) if (ranks[w] > best) best = ranks[w];
    return best;
}

/* The sum over all threads, which every thread gets. */
__device__ __forceinline__ float sum_of_all(float v, float* parts) {
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
    step_sync();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < STEP_WARPS; w++) total += parts[w];
    return total;
}

/* x of one call into shared memory, times the gain of a norm where there is one. What the norm scales by comes back. */
__device__ __forceinline__ float stage(float* xs, const float* x, const float* gain, int n, float* parts) {
    float ss = 0.0f;
#pragma unroll 1
    for (int j = threadIdx.x; j < n; j += 4 * @THREADS@) {  /* word by word: activations start on any of four bytes */
        float t[4], g[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            bool has = j + u * @THREADS@ < n;
            t[u] = has ? __ldcg(x + j + u * @THREADS@) : 0.0f;
            g[u] = has && gain ? __ldg(gain + j + u * @THREADS@) : 1.0f;
        }
#pragma unroll
        for (int u = 0; u < 4; u++) { ss += t[u] * t[u]; t[u] *= g[u]; }
#pragma unroll
        for (int u = 0; u < 4; u++) if (j + u * @THREADS@ < n) xs[j + u * @THREADS@] = t[u];
    }
    if (gain) return 1.0f / sqrtf(sum_of_all(ss, parts) / (float)n + 1e-5f);
    step_sync();
    return 1.0f;
}
"""

_STEP = r"""
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* What a step reads and writes, and where it stands. */
struct Step@S@ {
    Weights@S@ weights;
    const float *rms_att, *rms_ffn, *rms_final, *cos, *sin;
    float *x, *q, *xb, *hb, *logits, *k_cache, *v_cache;
    int p, n_heads, n_kv_heads, head_dim, positions, splits, group;
    float over_root;
    Merge merge;

    __device__ __forceinline__ size_t kv_layer(int layer) const { return (size_t)layer * positions * weights.kv_dim; }

    /* Parts of the positions of a head, and lanes that have a position together. */
    __device__ __forceinline__ void divide() {
        group = 1;
        while (group < 32 && 4 * group < head_dim) group *= 2;
        int at_once = 8 * STEP_WARPS * (32 / group);
        splits = p / at_once + 1;
        if (splits > STEP_PARTS) splits = STEP_PARTS;
        if (splits > 2 * merge.half) splits = 2 * merge.half;
        if (splits < 1) splits = 1;
        over_root = 1.0f / sqrtf((float)head_dim);
    }

    /* The token's row of the table as x: in shared memory for every block, in memory by one. */
    __device__ __forceinline__ float embed(const @W@* row, float* xs, float* parts) const {
        float ss = 0.0f;
        for (int j = threadIdx.x; j < weights.dim; j += @THREADS@) {
            float v = @WIDEN@(row[j]);
            if (blockIdx.x == 0) x[j] = v;
            ss += v * v;
            xs[j] = v * rms_att[j];
        }
        return 1.0f / sqrtf(sum_of_all(ss, parts) / (float)weights.dim + 1e-5f);
    }

    /* What a phase multiplies with; what a norm multiplies its sums by comes back. */
    __device__ __forceinline__ float stage_phase(int kind, int layer, float* xs, float* parts) const {
        int dim = weights.dim;
        if (kind == 1 && splits > 1) {
            stage_merged(xs, merge, splits, dim, n_heads, head_dim, xs + dim);
            return 1.0f;
        }
        const float* gain = kind == 0 ? rms_att + (size_t)layer * dim : kind == 2 ? rms_ffn + (size_t)layer * dim
                          : kind == 4 ? rms_final : 0;
        return stage(xs, kind == 1 ? xb : kind == 3 ? hb : x, gain, kind == 3 ? weights.hidden : dim, parts);
    }

    /* The units of a block in one phase: sums by all warps, then a thread finishes each. The best rank comes back. */
    __device__ __forceinline__ unsigned long long multiply(int kind, int layer, const Lot lot, float scale,
                                                           const float* xs, float2 (*pairs)[STEP_BATCH],
                                                           Queue@S@& queue, unsigned long long best) const {
        int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, dim = weights.dim, kv_dim = weights.kv_dim;
        int pieces = weights.pieces(kind), share = warp & ((1 << lot.log) - 1);
        int from = piece_of(pieces, share, lot.log), end = piece_of(pieces, share + 1, lot.log);
#pragma unroll 1
        for (int batch = 0; batch < lot.count; batch += STEP_BATCH) {
            int count = lot.count - batch < STEP_BATCH ? lot.count - batch : STEP_BATCH;
            int unit = lot.first + batch + tid, i = 2 * unit, row = i;
            bool cached = kind == 0 && i >= dim, turned = kind == 0 && i < dim + kv_dim;
            if (cached) row -= turned ? dim : dim + kv_dim;
            float c = 0.0f, d = 0.0f;  /* what finishing needs: asked for before the sums, which take longer */
            if (tid < count && turned) {
                size_t at = (size_t)p * (head_dim / 2) + (unsigned)row % head_dim / 2;
                c = __ldg(cos + at);
                d = __ldg(sin + at);
            } else if (tid < count && (kind == 1 || kind == 3)) { c = __ldcg(x + i); d = __ldcg(x + i + 1); }
#pragma unroll 1
            for (int task = warp; task < count << lot.log; task += STEP_WARPS) {
                float2 ab;
                queue.sums(from, end, xs, ab.x, ab.y);
                if (lane == 0) pairs[share][task >> lot.log] = ab;
            }
            step_sync();
            if (tid < count) {
                float a = 0.0f, b = 0.0f;
#pragma unroll 4
                for (int s = 0; s < 1 << lot.log; s++) { float2 ab = pairs[s][tid]; a += ab.x; b += ab.y; }
                a *= scale;
                b *= scale;
                if (kind == 0) {
                    float* to = q + row;
                    if (cached) to = (turned ? k_cache : v_cache) + kv_layer(layer) + (size_t)p * kv_dim + row;
                    to[0] = turned ? a * c - b * d : a;
                    to[1] = turned ? a * d + b * c : b;
                } else if (kind == 2) hb[unit] = a * (1.0f / (1.0f + expf(-a))) * b;
                else if (kind == 4) best = logits_of(i, a, b, best);
                else { x[i] = c + a; x[i + 1] = d + b; }
            }
            if (batch + STEP_BATCH < lot.count) step_sync();
        }
        return best;
    }

    __device__ __forceinline__ unsigned long long logits_of(int i, float a, float b, unsigned long long best) const {
        unsigned long long rank = rank_of(a, i), other = 0;
        logits[i] = a;
        if (i + 1 < weights.vocab) {
            logits[i + 1] = b;
            other = rank_of(b, i + 1);
        }
        if (other > rank) rank = other;
        return rank > best ? rank : best;
    }

    /* Attention of a layer: a head, or a part of its positions, by a block. */
    __device__ __forceinline__ void attend(int layer, float* room) const {
        unsigned n = p + 1, tasks = n_heads * splits;
        for (unsigned task = blockIdx.x; task < tasks; task += gridDim.x) {
            unsigned s = task / n_heads, h = task - s * n_heads, from = n * s / splits, to = n * (s + 1) / splits;
            size_t column = kv_layer(layer) + h / (n_heads / n_kv_heads) * head_dim;
            float *part = splits > 1 ? part_of(merge, s) : xb, *top = part + weights.dim + h;
            const float *of = q + h * head_dim, *k = k_cache + column, *v = v_cache + column;
            if (head_dim <= 128)
                attend_part<1>(part + h * head_dim, top, top + n_heads, of, k, v, from, to, weights.kv_dim, head_dim,
                               group, over_root, splits == 1, room);
            else
                attend_part<2>(part + h * head_dim, top, top + n_heads, of, k, v, from, to, weights.kv_dim, head_dim,
                               group, over_root, splits == 1, room);
            if (task + gridDim.x < tasks) step_sync();
        }
    }
};
#endif

extern "C" __global__ void __launch_bounds__(@THREADS@ + 32 * STEP_FEEDERS, 1) decode_step@S@(
        const int* token, int* fault, int* next, unsigned* bits, int* pos, const @W@* table, const float* rms_att,
        const @W@* wq, const @W@* wk, const @W@* wv, const @W@* wo, const float* rms_ffn, const @W@* w1, const @W@* w2,
        const @W@* w3, const float* rms_final, const @W@* classifier, const float* cos, const float* sin, float* x,
        float* q, float* xb, float* hb, float* hb2, float* logits, float* k_cache, float* v_cache, int pos0, int dim,
        int kv_dim, int hidden, int n_layers, int n_heads, int n_kv_heads, int vocab, int positions, int wants_logits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) char room[];
    __shared__ float parts[STEP_WARPS];
    __shared__ float2 pairs[STEP_WARPS][STEP_BATCH];
    __shared__ unsigned long long ranks[STEP_WARPS], full[STEP_WARPS][STEP_DEPTH], empty[STEP_WARPS][STEP_DEPTH];
    __shared__ Lot lots[5];
    int id = token[0], p = pos[0], tid = threadIdx.x, warp = tid >> 5;
    if (id < 0 || id >= vocab) {  /* the same for every block, so that none waits for another */
        if (blockIdx.x == 0 && tid == 0) { fault[0] = 1; fault[1] = 0; fault[2] = id; __threadfence_system(); }
        return;
    }
    Step@S@ step = {{wq, wk, wv, wo, w1, w2, w3, classifier, dim, kv_dim, hidden, n_layers, vocab},
                    rms_att, rms_ffn, rms_final, cos, sin, x, q, xb, hb, logits, k_cache, v_cache, p, n_heads,
                    n_kv_heads, dim / n_heads, positions, 1, 1, 1.0f,
                    {hb, hb2, dim + 2 * n_heads, hidden / (dim + 2 * n_heads)}};
    int phases = 4 * n_layers + (wants_logits ? 1 : 0);
    unsigned full_at = address_of(full), empty_at = address_of(empty);
    if (tid < STEP_WARPS * STEP_DEPTH) { open_barrier(full_at + 8 * tid); open_barrier(empty_at + 8 * tid); }
    show_barriers();
    if (tid < 5) lots[tid] = lot_of(step.weights.units(tid), step.weights.pieces(tid));
    __syncthreads();
    if (warp >= STEP_WARPS) {
        feed@S@(step.weights, lots, rms_att, rms_ffn, rms_final, address_of(room), full_at, empty_at, phases);
        return;
    }
    float* xs = (float*)(room + STEP_WARPS * STEP_DEPTH * 32 * STEP_CHUNK);
    unsigned mine = 8 * STEP_DEPTH * warp, times = 0;
    Queue@S@ queue = {room + warp * (STEP_DEPTH * 32 * STEP_CHUNK), full_at + mine, empty_at + mine, 0, 0};
    step.divide();
    unsigned long long best = 0;
    for (int phase = 0; phase < phases; phase++) {
        int kind = phase < 4 * n_layers ? phase & 3 : 4, layer = phase >> 2;
        float scale = phase == 0 ? step.embed(table + (size_t)id * dim, xs, parts)
                                 : step.stage_phase(kind, layer, xs, parts);
        best = step.multiply(kind, layer, lots[kind], scale, xs, pairs, queue, best);
        if (phase + 1 < phases) meet(++times);
        if (kind != 0) continue;
        step.attend(layer, xs);
        meet(++times);
    }
    if (!leave(best, ranks)) return;  /* the block that leaves last: all others have passed every meeting */
    best = best_of_all(ranks);
    if (tid) return;
    met[0] = met[1] = 0;
    pos[0] = p + 1;
    if (!wants_logits) return;
    float zeroth = __ldcg(logits);
    int at = best == 0 || zeroth != zeroth ? 0 : (int)(0xffffffffu - (unsigned)best);
    next[0] = at;
    bits[p - pos0] = __float_as_uint(__ldcg(logits + at));
#endif
}
"""

_MULTIPLY = {
    "fp32": r"""float4 f = *(const float4*)(xs + 4 * at);
                s += __uint_as_float(u.x) * f.x + __uint_as_float(u.y) * f.y + __uint_as_float(u.z) * f.z
                   + __uint_as_float(u.w) * f.w;
                t += __uint_as_float(w.x) * f.x + __uint_as_float(w.y) * f.y + __uint_as_float(w.z) * f.z
                   + __uint_as_float(w.w) * f.w;""",
    "narrow": r"""const float4* f = (const float4*)(xs + 8 * at);
                float4 low = f[0], high = f[1];
                float e[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                eight(u, e, s);
                eight(w, e, t);""",
}


def step_source(dtype: str) -> str:
    """The step for f32 weights; for a narrow type, which comes after it and `narrow_prelude`, the step for it alone."""
    if dtype == "fp32":
        words = {"W": "float", "S": "", "PER": 4, "WIDEN": "", "MULTIPLY": _MULTIPLY["fp32"]}
        text = _MEET + QUEUE + ATTEND + WEIGHTS + _STEP
    else:
        words = {"W": "narrow16", "S": f"_{dtype}", "PER": 8, "WIDEN": "widen", "MULTIPLY": _MULTIPLY["narrow"]}
        text = WEIGHTS + _STEP
    for word, value in (words | _SIZES).items():
        text = text.replace(f"@{word}@", str(value))
    return text
