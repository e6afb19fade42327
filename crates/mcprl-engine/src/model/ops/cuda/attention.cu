// Attention over the segments of a tree, forward and backward (Dao et al. 2022; Dao 2023), on tensor cores.
//
// Compiled for one head width `DIM` (32, 64, 96 or 128) and one 16-bit type: `BF16` is 1 for bf16, 0 for f16. Queries
// are scaled and rounded before; products have 16-bit factors and `f32` sums. Warps multiply by mma.m16n8k16, whose
// fragments the comments call A (16 x 16), B (16 x 8) and C (16 x 8).
//
// A block takes rows that attend to the same pieces of keys, for one key-value head. Its query heads are packed with the
// rows: packed row `m` is row `m / group` and head `m % group` of the key-value head's.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short half_t;  // The bits of a 16-bit value.

// Keys of a tile, and the distance of two of its rows in shared memory, without bank conflicts.
static const int TILE = 32;
static const int STRIDE = DIM + 8;

// The log-sum-exp of no score: finite, so that differences are finite. A masked score is far below.
static const float NOTHING = -1e30f, MASKED = -3e38f;

struct Heads {
    u32 kv, group;

    /* The row and query head of a packed row, in a matrix [rows, heads, ..]. */
    __device__ __forceinline__ u64 index(u32 packed, u32 of_kv) const {
        return (u64)(packed / group) * kv * group + of_kv * group + packed % group;
    }
};

/* Rows with one list of pieces. */
struct Item {
    u32 row, rows, piece, pieces;
    // Where the results of its first row are written.
    u32 slot;
};

/* Keys of a segment. A row of `from..to`, none of which precedes the segment, sees those up to its own position; others
   see none. */
struct Piece {
    u32 segment, key, keys;
    // The position of key 0, modulo 2^32.
    u32 first;
    u32 from, to;
};

/* Keys that `key_gradients` takes at once, and some of the rows that may see them. */
struct Keys {
    u32 key, keys;
    // The position of the first of these keys.
    u32 first;
    u32 from, to;
    // Where the sums over these rows are written.
    u32 slot;
};

/* The slots of all rows that see these keys: `from..to`. */
struct Sum {
    u32 key, keys;
    u32 from, to;
};

#ifndef EMULATED
/* Two values in the 16-bit type; `low` in the lower half. */
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 pair;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

/* c += a * b */
__device__ __forceinline__ void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
#if BF16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
#endif
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Begins to copy 16 bytes to shared memory; zeros if not `valid`. */
__device__ __forceinline__ void copy(half_t *to, const half_t *from, bool valid) {
    u32 bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes) : "memory");
}

/* Ends a group of copies. */
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits for all groups of this thread but the last. */
__device__ __forceinline__ void wait_for_all_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

/* Four 8 x 8 matrices from shared memory; a lane gives the address of one row of them. */
__device__ __forceinline__ void load(u32 out[4], const half_t *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}

/* The same, each transposed. */
__device__ __forceinline__ void load_transposed(u32 out[4], const half_t *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}
#endif

/* Begins to copy rows of a matrix to a tile, and zeros after the last: `count` of `most` rows, `stride` values apart. */
__device__ __forceinline__ void fill(half_t *tile, const half_t *from, u32 count, u32 most, u64 stride) {
    const u32 vectors = DIM / 8;
    for (u32 i = threadIdx.x; i < most * vectors; i += blockDim.x) {
        u32 row = i / vectors, column = i % vectors * 8;
        copy(tile + row * STRIDE + column, from + (row < count ? row : 0) * stride + column, row < count);
    }
}

/* The same for packed rows from `packed` on, below `end`. */
__device__ __forceinline__ void fill_packed(half_t *tile, const half_t *from, u32 packed, u32 end, u32 most, Heads heads,
                                            u32 kv) {
    const u32 vectors = DIM / 8;
    for (u32 i = threadIdx.x; i < most * vectors; i += blockDim.x) {
        u32 m = min(packed + i / vectors, end - 1), column = i % vectors * 8;
        copy(tile + i / vectors * STRIDE + column, from + heads.index(m, kv) * DIM + column, packed + i / vectors < end);
    }
}

/* A of 16 packed rows, straight from memory: [DIM / 16][4]. Rows at or after `end` are zeros. */
__device__ __forceinline__ void rows_of(u32 (*a)[4], const half_t *x, u32 packed, u32 end, Heads heads, u32 kv) {
    u32 lane = threadIdx.x % 32;
    for (u32 part = 0; part < 2; part++) {
        u32 m = packed + lane / 4 + 8 * part;
        const half_t *row = x + heads.index(m, kv) * DIM + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            a[k][part] = m < end ? *(const u32 *)(row + 16 * k) : 0;
            a[k][part + 2] = m < end ? *(const u32 *)(row + 16 * k + 8) : 0;
        }
    }
}

/* c[j] += rows of `a` times the 8 rows `8 j` of a tile, transposed, for all 32 rows of the tile. */
__device__ __forceinline__ void times_rows(float (*c)[4], u32 (*a)[4], const half_t *tile) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int k = 0; k < DIM / 32; k++) {
            u32 b[4];
            load(b, tile + (8 * j + lane % 8) * STRIDE + 32 * k + lane / 8 * 8);
            multiply(c[j], a[2 * k], b[0], b[1]);
            multiply(c[j], a[2 * k + 1], b[2], b[3]);
        }
}

/* c[j] += `a` (16 x 32, as two A) times the columns `8 j` of a tile's 32 rows. */
__device__ __forceinline__ void times_columns(float (*c)[4], u32 (*a)[4], const half_t *tile) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
#pragma unroll
        for (int j = 0; j < DIM / 16; j++) {
            u32 b[4];
            load_transposed(b, tile + (16 * k + lane / 8 % 2 * 8 + lane % 8) * STRIDE + 16 * j + lane / 16 * 8);
            multiply(c[2 * j], a[k], b[0], b[1]);
            multiply(c[2 * j + 1], a[k], b[2], b[3]);
        }
}

/* C of 16 x 32 values as two A, rounded. */
__device__ __forceinline__ void as_factor(u32 (*a)[4], float (*c)[4]) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        a[k][0] = pack(c[2 * k][0], c[2 * k][1]);
        a[k][1] = pack(c[2 * k][2], c[2 * k][3]);
        a[k][2] = pack(c[2 * k + 1][0], c[2 * k + 1][1]);
        a[k][3] = pack(c[2 * k + 1][2], c[2 * k + 1][3]);
    }
}

/* The first key that a row does not see. */
__device__ __forceinline__ u32 seen(const Piece &piece, u32 row, u32 position) {
    if (row < piece.from || row >= piece.to) return 0;
    return min(position + 1 - piece.first, piece.key + piece.keys);
}

/* Keys or values of all kv heads: of a segment, by a table of addresses, or of all rows. */
struct Rows {
    const u64 *table;
    const half_t *all;

    __device__ __forceinline__ const half_t *of(u32 segment) const {
        return table ? (const half_t *)table[segment] : all;
    }
};

/* The tiles of an item's keys, one after the other. */
struct Walk {
    const Piece *piece, *end;
    u32 start;

    __device__ __forceinline__ Walk(const Item &item, const Piece *pieces)
        : piece(pieces + item.piece), end(piece + item.pieces), start(item.pieces ? piece->key : 0) {}

    __device__ __forceinline__ bool more() const { return piece < end; }

    __device__ __forceinline__ void advance() {
        start += TILE;
        if (start >= piece->key + piece->keys && ++piece < end) start = piece->key;
    }

    /* Begins to copy the tile. */
    __device__ __forceinline__ void fetch(half_t *k_tile, half_t *v_tile, const Rows &keys, const Rows &values, u32 kv,
                                          u64 stride) const {
        u32 count = min((u32)TILE, piece->key + piece->keys - start);
        u64 at = start * stride + kv * DIM;
        fill(k_tile, keys.of(piece->segment) + at, count, TILE, stride);
        fill(v_tile, values.of(piece->segment) + at, count, TILE, stride);
    }

    /* Waits for the tile at hand, `which` of the two, and begins to copy the one behind it. Returns the piece and the first key
       of the tile at hand. */
    __device__ __forceinline__ Piece take(u32 &first, half_t (*k_tiles)[TILE * STRIDE], half_t (*v_tiles)[TILE * STRIDE],
                                          u32 which, const Rows &keys, const Rows &values, u32 kv, u64 stride) {
        Piece at_hand = *piece;
        first = start;
        advance();
        if (more()) fetch(k_tiles[which ^ 1], v_tiles[which ^ 1], keys, values, kv, stride);
        commit();
        wait_for_all_but_last();
        __syncthreads();
        return at_hand;
    }
};

/* Over the four lanes of a row. */
__device__ __forceinline__ float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float quad_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/* Attention of an item's rows: `out` [slots, heads, DIM] and the log-sum-exp of their scores, `lse` [slots, heads].
   Grid: items, kv heads. Block: a warp for each 16 packed rows. */
extern "C" __global__ void attend(const half_t *q, const u64 *key_table, const half_t *all_keys, const u64 *value_table,
                                  const half_t *all_values, const u32 *positions, const Item *items,
                                  const Piece *pieces, float *out, float *lse, u32 kv_heads, u32 group) {
    Rows keys = {key_table, all_keys}, values = {value_table, all_values};
    // While a block computes on one tile, the next is copied.
    __shared__ __align__(16) half_t k_tiles[2][TILE * STRIDE];
    __shared__ __align__(16) half_t v_tiles[2][TILE * STRIDE];
    Heads heads = {kv_heads, group};
    Item item = items[blockIdx.x];
    u32 kv = blockIdx.y, lane = threadIdx.x % 32;
    u32 packed = item.row * group + threadIdx.x / 32 * 16, end = (item.row + item.rows) * group;
    u64 stride = (u64)kv_heads * DIM;

    u32 query[DIM / 16][4];
    rows_of(query, q, packed, end, heads, kv);
    u32 m[2] = {packed + lane / 4, packed + lane / 4 + 8}, row[2], position[2];
    for (int part = 0; part < 2; part++) {
        row[part] = m[part] < end ? m[part] / group : 0xffffffffu;
        position[part] = m[part] < end ? positions[row[part]] : 0;
    }
    float sums[DIM / 8][4] = {}, most[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f};

    Walk walk(item, pieces);
    if (walk.more()) walk.fetch(k_tiles[0], v_tiles[0], keys, values, kv, stride);
    commit();
    for (u32 which = 0; walk.more(); which ^= 1) {
        u32 start;
        Piece piece = walk.take(start, k_tiles, v_tiles, which, keys, values, kv, stride);
        const half_t *k_tile = k_tiles[which], *v_tile = v_tiles[which];
        u32 limit[2] = {seen(piece, row[0], position[0]), seen(piece, row[1], position[1])};
        float scores[TILE / 8][4] = {};
        times_rows(scores, query, k_tile);
        float highest[2] = {most[0], most[1]};
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 key = start + 8 * j + lane % 4 * 2 + i % 2;
                if (key >= limit[i / 2]) scores[j][i] = MASKED;
                highest[i / 2] = fmaxf(highest[i / 2], scores[j][i]);
            }
        float shrink[2];
        for (int part = 0; part < 2; part++) {
            highest[part] = quad_max(highest[part]);
            shrink[part] = __expf(most[part] - highest[part]);
            most[part] = highest[part];
            total[part] *= shrink[part];
        }
#pragma unroll
        for (int j = 0; j < DIM / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[j][i] *= shrink[i / 2];
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[j][i] = __expf(scores[j][i] - most[i / 2]);
                total[i / 2] += scores[j][i];
            }
        u32 shares[TILE / 16][4];
        as_factor(shares, scores);
        times_columns(sums, shares, v_tile);
        __syncthreads();
    }
    for (int part = 0; part < 2; part++) {
        total[part] = quad_sum(total[part]);
        if (m[part] >= end) continue;
        u64 slot = (u64)(item.slot + row[part] - item.row) * kv_heads * group + kv * group + m[part] % group;
        float inverse = total[part] > 0.0f ? 1.0f / total[part] : 0.0f;
#pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            float2 pair = make_float2(sums[j][2 * part] * inverse, sums[j][2 * part + 1] * inverse);
            *(float2 *)(out + slot * DIM + 8 * j + lane % 4 * 2) = pair;
        }
        if (lane % 4 == 0) lse[slot] = total[part] > 0.0f ? most[part] + logf(total[part]) : NOTHING;
    }
}

/* Merges the parts of each row: slots `parts[starts[row]..starts[row + 1]]`. A warp for each row and head. */
extern "C" __global__ void merge(const float *part_out, const float *part_lse, const u32 *starts, const u32 *parts,
                                 float *out, u32 rows, u32 heads) {
    u32 index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= rows * heads) return;
    u32 row = index / heads, head = index % heads;
    float most = NOTHING, total = 0.0f, sums[DIM / 32] = {};
    for (u32 i = starts[row]; i < starts[row + 1]; i++) {
        u64 slot = (u64)parts[i] * heads + head;
        float lse = part_lse[slot], highest = fmaxf(most, lse);
        float shrink = __expf(most - highest), share = __expf(lse - highest);
        if (lse <= NOTHING) share = 0.0f;
        most = highest, total = total * shrink + share;
        for (int j = 0; j < DIM / 32; j++) sums[j] = sums[j] * shrink + share * part_out[slot * DIM + 32 * j + lane];
    }
    float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (int j = 0; j < DIM / 32; j++) out[(u64)index * DIM + 32 * j + lane] = sums[j] * inverse;
}

/* The dot product of each row and head of `out` with its gradient. A warp for each. */
extern "C" __global__ void dots(const float *out, const float *dout, float *dots, u32 count) {
    u32 index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= count) return;
    float sum = 0.0f;
    for (int i = lane; i < DIM; i += 32) sum += out[(u64)index * DIM + i] * dout[(u64)index * DIM + i];
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) dots[index] = sum;
}

/* The gradient of the queries before scaling by `scale`; items as in `attend`. */
extern "C" __global__ void query_gradient(const half_t *q, const half_t *dout, const half_t *k, const half_t *v,
                                          const u32 *positions, const Item *items, const Piece *pieces,
                                          const float *lse, const float *dots, float *dq, u32 kv_heads, u32 group,
                                          float scale) {
    Rows keys = {nullptr, k}, values = {nullptr, v};
    // While a block computes on one tile, the next is copied.
    __shared__ __align__(16) half_t k_tiles[2][TILE * STRIDE];
    __shared__ __align__(16) half_t v_tiles[2][TILE * STRIDE];
    Heads heads = {kv_heads, group};
    Item item = items[blockIdx.x];
    u32 kv = blockIdx.y, lane = threadIdx.x % 32;
    u32 packed = item.row * group + threadIdx.x / 32 * 16, end = (item.row + item.rows) * group;
    u64 stride = (u64)kv_heads * DIM;

    u32 query[DIM / 16][4], back[DIM / 16][4];
    rows_of(query, q, packed, end, heads, kv);
    rows_of(back, dout, packed, end, heads, kv);
    u32 m[2] = {packed + lane / 4, packed + lane / 4 + 8}, row[2], position[2];
    float total[2], along[2];
    for (int part = 0; part < 2; part++) {
        row[part] = m[part] < end ? m[part] / group : 0xffffffffu;
        position[part] = m[part] < end ? positions[row[part]] : 0;
        u64 head = heads.index(m[part], kv);
        total[part] = m[part] < end ? lse[head] : 0.0f;
        along[part] = m[part] < end ? dots[head] : 0.0f;
    }
    float sums[DIM / 8][4] = {};

    Walk walk(item, pieces);
    if (walk.more()) walk.fetch(k_tiles[0], v_tiles[0], keys, values, kv, stride);
    commit();
    for (u32 which = 0; walk.more(); which ^= 1) {
        u32 start;
        Piece piece = walk.take(start, k_tiles, v_tiles, which, keys, values, kv, stride);
        const half_t *k_tile = k_tiles[which], *v_tile = v_tiles[which];
        u32 limit[2] = {seen(piece, row[0], position[0]), seen(piece, row[1], position[1])};
        float scores[TILE / 8][4] = {}, shares[TILE / 8][4] = {};
        times_rows(scores, query, k_tile);
        times_rows(shares, back, v_tile);
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 key = start + 8 * j + lane % 4 * 2 + i % 2;
                float p = key < limit[i / 2] ? __expf(scores[j][i] - total[i / 2]) : 0.0f;
                shares[j][i] = p * (shares[j][i] - along[i / 2]);
            }
        u32 factor[TILE / 16][4];
        as_factor(factor, shares);
        times_columns(sums, factor, k_tile);
        __syncthreads();
    }
    for (int part = 0; part < 2; part++) {
        if (m[part] >= end) continue;
        u64 head = heads.index(m[part], kv);
#pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            float2 pair = make_float2(sums[j][2 * part] * scale, sums[j][2 * part + 1] * scale);
            *(float2 *)(dq + head * DIM + 8 * j + lane % 4 * 2) = pair;
        }
    }
}

// Keys of a block of `key_gradients`: 16 for each of four warps.
static const int KEYS = 64;

/* Sums of the gradients of keys and values over some rows: [slots, kv heads, KEYS, DIM]. `q` is scaled. Grid: `tiles`, kv
   heads. Block: four warps; shared memory for two tiles of KEYS rows and four of TILE, and six numbers for each of
   TILE rows. */
extern "C" __global__ void key_gradients(const half_t *q, const half_t *dout, const half_t *k, const half_t *v,
                                         const u32 *positions, const Keys *tiles, const float *lse, const float *dots,
                                         float *dk, float *dv, u32 kv_heads, u32 group) {
#ifdef EMULATED
    half_t *shared = dynamic_shared<half_t>();
#else
    extern __shared__ __align__(16) half_t shared[];
#endif
    half_t *k_tile = shared, *v_tile = k_tile + KEYS * STRIDE;
    // Two of each of these: while a block computes on one, the next is copied.
    half_t *q_tiles = v_tile + KEYS * STRIDE, *back_tiles = q_tiles + 2 * TILE * STRIDE;
    float *totals = (float *)(back_tiles + 2 * TILE * STRIDE), *alongs = totals + 2 * TILE;
    u32 *limits = (u32 *)(alongs + 2 * TILE);
    Heads heads = {kv_heads, group};
    Keys tile = tiles[blockIdx.x];
    u32 kv = blockIdx.y, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
    u64 stride = (u64)kv_heads * DIM;
    fill(k_tile, k + tile.key * stride + kv * DIM, tile.keys, KEYS, stride);
    fill(v_tile, v + tile.key * stride + kv * DIM, tile.keys, KEYS, stride);
    float key_sums[DIM / 8][4] = {}, value_sums[DIM / 8][4] = {};

    u32 end = tile.to * group;
    auto fetch = [&](u32 packed, u32 which) {
        fill_packed(q_tiles + which * TILE * STRIDE, q, packed, end, TILE, heads, kv);
        fill_packed(back_tiles + which * TILE * STRIDE, dout, packed, end, TILE, heads, kv);
        if (threadIdx.x >= TILE) return;
        u32 m = packed + threadIdx.x, row = m / group, at = which * TILE + threadIdx.x;
        u64 head = heads.index(m, kv);
        totals[at] = m < end ? lse[head] : 0.0f;
        alongs[at] = m < end ? dots[head] : 0.0f;
        limits[at] = m < end && positions[row] >= tile.first ? min(positions[row] + 1 - tile.first, tile.keys) : 0;
    };
    u32 which = 0;
    fetch(tile.from * group, 0);
    commit();
    for (u32 packed = tile.from * group; packed < end; packed += TILE, which ^= 1) {
        if (packed + TILE < end) fetch(packed + TILE, which ^ 1);
        commit();
        wait_for_all_but_last();
        __syncthreads();
        const half_t *q_tile = q_tiles + which * TILE * STRIDE, *back_tile = back_tiles + which * TILE * STRIDE;
        const float *total = totals + which * TILE, *along = alongs + which * TILE;
        const u32 *limit = limits + which * TILE;
        // By keys and rows: the transposed scores, and what their shares are worth.
        float scores[TILE / 8][4] = {}, shares[TILE / 8][4] = {};
#pragma unroll
        for (int step = 0; step < DIM / 32; step++) {
            u32 key[2][4], value[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 at = (own + lane / 8 % 2 * 8 + lane % 8) * STRIDE + 32 * step + 16 * i + lane / 16 * 8;
                load(key[i], k_tile + at);
                load(value[i], v_tile + at);
            }
#pragma unroll
            for (int j = 0; j < TILE / 8; j++) {
                u32 b[4], at = (8 * j + lane % 8) * STRIDE + 32 * step + lane / 8 * 8;
                load(b, q_tile + at);
                multiply(scores[j], key[0], b[0], b[1]);
                multiply(scores[j], key[1], b[2], b[3]);
                load(b, back_tile + at);
                multiply(shares[j], value[0], b[0], b[1]);
                multiply(shares[j], value[1], b[2], b[3]);
            }
        }
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 key = own + lane / 4 + i / 2 * 8, row = 8 * j + lane % 4 * 2 + i % 2;
                scores[j][i] = key < limit[row] ? __expf(scores[j][i] - total[row]) : 0.0f;
                shares[j][i] = scores[j][i] * (shares[j][i] - along[row]);
            }
        u32 factor[TILE / 16][4];
        as_factor(factor, scores);
        times_columns(value_sums, factor, back_tile);
        as_factor(factor, shares);
        times_columns(key_sums, factor, q_tile);
        __syncthreads();
    }
    for (int part = 0; part < 2; part++) {
        u32 key = own + lane / 4 + 8 * part;
        u64 at = (((u64)tile.slot * kv_heads + kv) * KEYS + key) * DIM + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            *(float2 *)(dk + at + 8 * j) = make_float2(key_sums[j][2 * part], key_sums[j][2 * part + 1]);
            *(float2 *)(dv + at + 8 * j) = make_float2(value_sums[j][2 * part], value_sums[j][2 * part + 1]);
        }
    }
}

/* The gradients of keys and values from their sums in slots. Grid: `tiles`, kv heads. */
extern "C" __global__ void sum_slots(const float *key_sums, const float *value_sums, const Sum *tiles, float *dk,
                                     float *dv, u32 kv_heads) {
    Sum tile = tiles[blockIdx.x];
    u32 kv = blockIdx.y;
    for (u32 i = threadIdx.x; i < tile.keys * DIM; i += blockDim.x) {
        float key = 0.0f, value = 0.0f;
        for (u32 slot = tile.from; slot < tile.to; slot++) {
            u64 at = ((u64)slot * kv_heads + kv) * KEYS * DIM + i;
            key += key_sums[at], value += value_sums[at];
        }
        u64 at = ((u64)(tile.key + i / DIM) * kv_heads + kv) * DIM + i % DIM;
        dk[at] = key, dv[at] = value;
    }
}

/* x * scale, rounded to the 16-bit type; `pairs` of values. */
extern "C" __global__ void rounded(const float *x, u32 *out, u64 pairs, float scale) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    float2 pair = ((const float2 *)x)[i];
    out[i] = pack(pair.x * scale, pair.y * scale);
}

/* Appends row `i` of `k` and `v` to its segment, rounded, as the segment's row `at[i]`. Grid: rows. */
extern "C" __global__ void append(const float *k, const float *v, const u64 *keys, const u64 *values,
                                  const u32 *segments, const u32 *at, u32 width) {
    u32 row = blockIdx.x;
    u32 *key = (u32 *)((half_t *)keys[segments[row]] + (u64)at[row] * width);
    u32 *value = (u32 *)((half_t *)values[segments[row]] + (u64)at[row] * width);
    const float2 *of_key = (const float2 *)(k + (u64)row * width), *of_value = (const float2 *)(v + (u64)row * width);
    for (u32 i = threadIdx.x; i < width / 2; i += blockDim.x) {
        key[i] = pack(of_key[i].x, of_key[i].y);
        value[i] = pack(of_value[i].x, of_value[i].y);
    }
}
