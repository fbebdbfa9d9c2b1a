"""Attention of many tokens at once: tiles of 64 tokens by 64 positions, with a running maximum, in strict f32.

A block has one head and 64 tokens; a thread has 4 tokens by 4 scores, and then 4 tokens by an eighth of a row of V
or less. Each key and value is read once for 64 tokens. Sums run in an order that never changes. Heads up to 128.
"""

from __future__ import annotations

__all__ = ["TILE"]

TILE = r"""
extern "C" __global__ void __launch_bounds__(256) attention_tile(float* out, const float* q, const float* k_cache,
        const float* v_cache, int rows, int pos0, int n_heads, int n_kv_heads, int head_dim) {
    __shared__ __align__(16) float qs[32][68], ks[32][68], ps[64][68];
    float (*vs)[132] = (float (*)[132])qs;  /* 16 positions by 128, where q and k lay: both tiles are 8,704 bytes */
    int h = blockIdx.x, t0 = 64 * (gridDim.y - 1 - blockIdx.y), tid = threadIdx.x, tx = tid & 15, ty = tid >> 4;
    int dim = n_heads * head_dim, kv_dim = n_kv_heads * head_dim;
    const float* qh = q + (size_t)h * head_dim;
    size_t kv0 = (size_t)(h / (n_heads / n_kv_heads)) * head_dim;
    float root = sqrtf((float)head_dim), acc[4][8], top[4], total[4];
#pragma unroll
    for (int a = 0; a < 4; a++) {
        top[a] = -INFINITY; total[a] = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; e++) acc[a][e] = 0.0f;
    }
    int last = t0 + 63 < rows - 1 ? t0 + 63 : rows - 1, end = pos0 + last + 1;  /* positions that this block reads */
    for (int p0 = 0; p0 < end; p0 += 64) {
        float s[4][4] = {};
        for (int d0 = 0; d0 < head_dim; d0 += 32) {
            __syncthreads();
            for (int e = tid; e < 64 * 32; e += 256) {
                int d = e & 31, r = e >> 5;
                qs[d][r] = (t0 + r < rows && d0 + d < head_dim) ? qh[(size_t)(t0 + r) * dim + d0 + d] : 0.0f;
                bool held = p0 + r < end && d0 + d < head_dim;
                ks[d][r] = held ? k_cache[(size_t)(p0 + r) * kv_dim + kv0 + d0 + d] : 0.0f;
            }
            __syncthreads();
#pragma unroll 8
            for (int d = 0; d < 32; d++) {
                float4 x = *(const float4*)&qs[d][4 * ty], y = *(const float4*)&ks[d][4 * tx];
                float a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) s[i][j] += a[i] * b[j];
            }
        }
        float old[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = pos0 + t0 + 4 * ty + i;  /* the position of this token: it sees none behind */
            float high = top[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int p = p0 + 4 * tx + j;
                s[i][j] = p <= at && p < end ? s[i][j] / root : -INFINITY;
                high = fmaxf(high, s[i][j]);
            }
            for (int o = 8; o; o >>= 1) high = fmaxf(high, __shfl_xor_sync(FULL, high, o));
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = s[i][j] == -INFINITY ? 0.0f : expf(s[i][j] - high);
                sum += s[i][j];
            }
            for (int o = 8; o; o >>= 1) sum += __shfl_xor_sync(FULL, sum, o);
            old[i] = top[i] == -INFINITY ? 0.0f : expf(top[i] - high);
            total[i] = total[i] * old[i] + sum;
            top[i] = high;
            *(float4*)&ps[4 * ty + i][4 * tx] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 8; e++) acc[i][e] *= old[i];
        for (int v0 = 0; v0 < 64 && p0 + v0 < end; v0 += 16) {
            __syncthreads();
            for (int e = tid; e < 16 * 128; e += 256) {
                int d = e & 127, r = e >> 7, p = p0 + v0 + r;
                vs[r][d] = (p < end && d < head_dim) ? v_cache[(size_t)p * kv_dim + kv0 + d] : 0.0f;
            }
            __syncthreads();
#pragma unroll 4
            for (int r = 0; r < 16; r++) {
                float4 y = *(const float4*)&vs[r][4 * tx], z = *(const float4*)&vs[r][64 + 4 * tx];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float w = ps[4 * ty + i][v0 + r];
                    acc[i][0] += w * y.x; acc[i][1] += w * y.y; acc[i][2] += w * y.z; acc[i][3] += w * y.w;
                    acc[i][4] += w * z.x; acc[i][5] += w * z.y; acc[i][6] += w * z.z; acc[i][7] += w * z.w;
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int t = t0 + 4 * ty + i;
        if (t >= rows) continue;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            int d = (e < 4 ? 0 : 60) + 4 * tx + e;
            if (d < head_dim) out[(size_t)t * dim + (size_t)h * head_dim + d] = acc[i][e] / total[i];
        }
    }
}
"""
