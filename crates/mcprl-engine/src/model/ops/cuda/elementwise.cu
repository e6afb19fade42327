// Operations over rows and elements. Tensors are contiguous; `f32` unless a comment says otherwise.

typedef unsigned int u32;
typedef unsigned long long u64;

static const u32 BLOCK = 256;

__device__ __forceinline__ u64 element() { return (u64)blockIdx.x * BLOCK + threadIdx.x; }

__device__ __forceinline__ float warp_sum(float value) {
    for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* The sum over the threads of a row: a warp, or the whole block. */
__device__ __forceinline__ float row_sum(float value, u32 threads) {
    __shared__ float parts[BLOCK / 32];
    value = warp_sum(value);
    if (threads == 32) return value;
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    for (u32 i = 0; i < BLOCK / 32; i++) sum += parts[i];
    return sum;
}

/* The row of a thread, whose rows have 32 or BLOCK threads. */
__device__ __forceinline__ u64 row_of(u32 threads) {
    return (u64)blockIdx.x * (BLOCK / threads) + threadIdx.x / threads;
}

/* y = x / rms(x) * weight, by rows of `width`. */
extern "C" __global__ void rms_norm(const float *x, const float *weight, float *y, u32 rows, u32 width, float epsilon,
                                    u32 threads) {
    u64 row = row_of(threads);
    if (row >= rows) return;
    u32 first = threadIdx.x % threads;
    x += row * width, y += row * width;
    float sum = 0.0f;
    for (u32 i = first; i < width; i += threads) sum += x[i] * x[i];
    float inverse = rsqrtf(row_sum(sum, threads) / width + epsilon);
    for (u32 i = first; i < width; i += threads) y[i] = x[i] * inverse * weight[i];
}

/* dx += the gradient of rms_norm's input. */
extern "C" __global__ void rms_norm_backward(const float *x, const float *weight, const float *dy, float *dx, u32 rows,
                                             u32 width, float epsilon, u32 threads) {
    u64 row = row_of(threads);
    if (row >= rows) return;
    u32 first = threadIdx.x % threads;
    x += row * width, dy += row * width, dx += row * width;
    float squares = 0.0f, along = 0.0f;
    for (u32 i = first; i < width; i += threads) {
        squares += x[i] * x[i];
        along += dy[i] * weight[i] * x[i];
    }
    squares = row_sum(squares, threads), along = row_sum(along, threads);
    float inverse = rsqrtf(squares / width + epsilon);
    float back = along * inverse * inverse / width;
    for (u32 i = first; i < width; i += threads) dx[i] += inverse * (dy[i] * weight[i] - x[i] * back);
}

/* Rotates the first 2 * half values of each head, in place. Tables are [positions, half]. */
extern "C" __global__ void rotate(float *x, const u32 *positions, const float *cosines, const float *sines, u64 pairs,
                                  u32 heads, u32 head, u32 half, float sign) {
    u64 pair = element();
    if (pair >= pairs) return;
    u64 token = pair / (heads * half);
    u32 within = pair % (heads * half), i = within % half;
    u64 angle = (u64)positions[token] * half + i;
    float cosine = cosines[angle], sine = sign * sines[angle];
    x += (token * heads + within / half) * head + i;
    float low = x[0], high = x[half];
    x[0] = low * cosine - high * sine;
    x[half] = high * cosine + low * sine;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

extern "C" __global__ void silu_mul(const float *gate, const float *up, float *out, u64 count) {
    u64 i = element();
    if (i < count) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

extern "C" __global__ void silu_mul_backward(const float *gate, const float *up, const float *dout, float *dgate,
                                             float *dup, u64 count) {
    u64 i = element();
    if (i >= count) return;
    float share = sigmoid(gate[i]), silu = gate[i] * share;
    dgate[i] = dout[i] * up[i] * (share + silu * (1.0f - share));
    dup[i] = dout[i] * silu;
}

/* into += x */
extern "C" __global__ void add(float *into, const float *x, u64 count) {
    u64 i = element();
    if (i < count) into[i] += x[i];
}

/* Adds a vector to each row, in place. */
extern "C" __global__ void add_to_rows(float *into, const float *x, u64 count, u32 width) {
    u64 i = element();
    if (i < count) into[i] += x[i % width];
}

/* The bits of a value rounded to bf16, to nearest, ties to even. */
__device__ __forceinline__ u32 bf16_bits(float value) {
    u32 bits = __float_as_uint(value);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* 4-bit codes as bf16, two to a word: a thread for each byte of codes. A scale is that of 32 bytes; `pairs` has the two
   values of each byte. */
extern "C" __global__ void decode_nf4(const unsigned char *codes, const float *scales, const float *pairs, u32 *out,
                                      u64 count) {
    u64 i = element();
    if (i >= count) return;
    float scale = scales[i / 32];
    const float *pair = pairs + 2 * codes[i];
    out[i] = bf16_bits(pair[0] * scale) | bf16_bits(pair[1] * scale) << 16;
}

/* One step of AdamW in place, as in `optimizer.rs`. */
extern "C" __global__ void adamw(float *values, const float *gradients, float *first, float *second, u64 count,
                                 float rate, float beta1, float beta2, float weight_decay, float correct1,
                                 float correct2, float scale) {
    u64 i = element();
    if (i >= count) return;
    float gradient = gradients[i] * scale;
    float mean = beta1 * first[i] + (1.0f - beta1) * gradient;
    float square = beta2 * second[i] + (1.0f - beta2) * gradient * gradient;
    first[i] = mean, second[i] = square;
    values[i] -= rate * (mean / correct1 / (sqrtf(square / correct2) + 1e-8f) + weight_decay * values[i]);
}

/* y = scale * x * weight^T for few rows and few outputs: x [rows, inputs], weight [outputs, inputs]. A warp for each
   row and output; grid: outputs by the warps of a block, rows. */
extern "C" __global__ void few_outputs(const float *x, const float *weight, float *y, u32 inputs, u32 outputs,
                                       float scale) {
    u32 output = blockIdx.x * (BLOCK / 32) + threadIdx.x / 32, row = blockIdx.y, lane = threadIdx.x % 32;
    if (output >= outputs) return;
    x += (u64)row * inputs, weight += (u64)output * inputs;
    float sum = 0.0f;
    for (u32 i = lane; i < inputs; i += 32) sum += x[i] * weight[i];
    sum = warp_sum(sum);
    if (lane == 0) y[(u64)row * outputs + output] = scale * sum;
}

// Rows of a thread of `few_inputs`.
static const u32 ROWS = 8;

/* y += scale * x * weight^T for few rows and few inputs. A thread for each output, of ROWS rows; grid: outputs by the
   threads of a block, rows by ROWS. */
extern "C" __global__ void few_inputs(const float *x, const float *weight, float *y, u32 rows, u32 inputs, u32 outputs,
                                      float scale) {
    u32 output = blockIdx.x * BLOCK + threadIdx.x, first = blockIdx.y * ROWS;
    if (output >= outputs) return;
    weight += (u64)output * inputs, x += (u64)first * inputs;
    u32 count = min(ROWS, rows - first);
    float sums[ROWS] = {};
    for (u32 i = 0; i < inputs; i++) {
        float factor = weight[i];
#pragma unroll
        for (u32 row = 0; row < ROWS; row++)
            if (row < count) sums[row] += x[row * inputs + i] * factor;
    }
#pragma unroll
    for (u32 row = 0; row < ROWS; row++)
        if (row < count) y[(u64)(first + row) * outputs + output] += scale * sums[row];
}

static const u32 ROW = 1024;

/* Over the threads of a block of ROW: the largest value with its smallest index. */
__device__ __forceinline__ void block_max(float &value, u32 &index) {
    __shared__ float values[ROW / 32];
    __shared__ u32 indices[ROW / 32];
    for (int offset = 16; offset; offset >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, value, offset);
        u32 at = __shfl_xor_sync(0xffffffffu, index, offset);
        if (other > value || (other == value && at < index)) value = other, index = at;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = value, indices[threadIdx.x / 32] = index;
    __syncthreads();
    value = values[0], index = indices[0];
    for (u32 i = 1; i < ROW / 32; i++)
        if (values[i] > value || (values[i] == value && indices[i] < index)) value = values[i], index = indices[i];
}

/* Over the threads of a block of ROW: the sum of those before each thread, and of all. */
__device__ __forceinline__ double block_prefix(double value, double &total) {
    __shared__ double sums[ROW / 32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double inclusive = value;
    for (int offset = 1; offset < 32; offset <<= 1) {
        double other = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= (u32)offset) inclusive += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = inclusive;
    __syncthreads();
    double before = 0.0;
    total = 0.0;
    for (u32 i = 0; i < ROW / 32; i++) {
        if (i < warp) before += sums[i];
        total += sums[i];
    }
    return before + inclusive - value;
}

/* Draws a token from each row of logits: the token, and its log-probability at temperature 1. `draws` holds, per row,
   a number in [0, 1); `temperatures` 0 takes the most likely token. A block of ROW threads per row; each has a run of
   tokens, so that the sums before it are those of the tokens before. */
extern "C" __global__ void __launch_bounds__(ROW) draw(const float *logits, const double *draws, const float *temperatures, u32 *tokens,
                                float *logprobs, u32 vocabulary) {
    __shared__ u32 chosen;
    logits += (u64)blockIdx.x * vocabulary;
    float most = -3e38f;
    u32 best = 0;
    for (u32 i = threadIdx.x; i < vocabulary; i += ROW)
        if (logits[i] > most) most = logits[i], best = i;
    block_max(most, best);
    double sum = 0.0, total;
    for (u32 i = threadIdx.x; i < vocabulary; i += ROW) sum += __expf(logits[i] - most);
    block_prefix(sum, total);
    float temperature = temperatures[blockIdx.x];
    if (threadIdx.x == 0) chosen = best;
    __syncthreads();
    if (temperature > 0.0f) {
        u32 run = (vocabulary + ROW - 1) / ROW;
        u32 from = min(threadIdx.x * run, vocabulary), to = min(from + run, vocabulary);
        double own = 0.0, all;
        for (u32 i = from; i < to; i++) own += __expf((logits[i] - most) / temperature);
        double before = block_prefix(own, all), wanted = draws[blockIdx.x] * all;
        if (before <= wanted && wanted < before + own) {
            u32 last = best;
            for (u32 i = from; i < to; i++) {
                float share = __expf((logits[i] - most) / temperature);
                if (share > 0.0f) last = i;
                before += share;
                if (wanted < before) break;
            }
            chosen = last;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        tokens[blockIdx.x] = chosen;
        logprobs[blockIdx.x] = (logits[chosen] - most) - (float)log(total);
    }
}

/* The logarithm of the sum of exponentials of a row, over a block of ROW threads. */
__device__ __forceinline__ float log_sum_exp(const float *logits, u32 vocabulary) {
    float most = -3e38f;
    u32 best = 0;
    for (u32 i = threadIdx.x; i < vocabulary; i += ROW) most = fmaxf(most, logits[i]);
    block_max(most, best);
    double sum = 0.0, total;
    for (u32 i = threadIdx.x; i < vocabulary; i += ROW) sum += __expf(logits[i] - most);
    block_prefix(sum, total);
    return most + (float)log(total);
}

/* Log-probabilities of the tokens `tokens[starts[row]..starts[row + 1]]` of each row. */
extern "C" __global__ void __launch_bounds__(ROW) log_probabilities(const float *logits, const u32 *starts, const u32 *tokens, float *found,
                                             u32 vocabulary) {
    logits += (u64)blockIdx.x * vocabulary;
    float total = log_sum_exp(logits, vocabulary);
    for (u32 i = starts[blockIdx.x] + threadIdx.x; i < starts[blockIdx.x + 1]; i += ROW)
        found[i] = logits[tokens[i]] - total;
}

/* Overwrites each row with the sum over its tokens of slope * (one at the token - probabilities). */
extern "C" __global__ void __launch_bounds__(ROW) log_probabilities_backward(float *logits, const u32 *starts, const u32 *tokens,
                                                      const float *slopes, u32 vocabulary) {
    logits += (u64)blockIdx.x * vocabulary;
    u32 from = starts[blockIdx.x], to = starts[blockIdx.x + 1];
    float total = log_sum_exp(logits, vocabulary), sum = 0.0f;
    for (u32 i = from; i < to; i++) sum += slopes[i];
    for (u32 i = threadIdx.x; i < vocabulary; i += ROW) logits[i] = -sum * __expf(logits[i] - total);
    __syncthreads();
    // One thread, for a row may have a token twice.
    if (threadIdx.x == 0)
        for (u32 i = from; i < to; i++) logits[tokens[i]] += slopes[i];
}
