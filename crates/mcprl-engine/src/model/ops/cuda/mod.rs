//! Our own kernels for CUDA devices. NVRTC compiles them when a device first needs them.
//!
//! Functions take and return contiguous tensors on one CUDA device. A kernel is queued on the device's stream, which
//! orders it after everything that was queued before, so no call waits for its result.

#![expect(unsafe_code, reason = "kernels get raw addresses")]

mod attention;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use candle_core::{
    CudaDevice, CudaStorage, DType, Device, DeviceLocation, Error, Result, Shape, Storage, Tensor, bail,
    cuda_backend::{
        CudaDType,
        cudarc::{
            cublas::{
                result::gemm_ex,
                sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType_t},
            },
            driver::{
                CudaContext, CudaFunction, CudaModule, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
                result::{device::get_default_mem_pool, mem_pool, memcpy_dtod_async},
                sys::{self, CUmemoryPool},
            },
            nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts},
        },
    },
    op::BackpropOp,
};
use half::{bf16, f16};
use parking_lot::Mutex;

use super::{Product, forced::forced};
use crate::model::kernels::NF4_BLOCK;
pub use attention::{StepPlan, TreePlan, takes_attention};

/// Threads of a block that works on elements: `BLOCK` in `elementwise.cu`.
const BLOCK: u32 = 256;
/// Threads of a block that works on a row of logits: `ROW` in `elementwise.cu`.
const ROW: u32 = 1024;
/// Rows up to this width have a warp each, wider ones a block.
const WARP_ROW: usize = 512;
/// Rows of a thread: `ROWS` in `elementwise.cu`.
const ROWS: usize = 8;
/// Products with an adapter of at most this rank, for at most so many rows, take kernels of ours. cuBLAS would take two, and
/// longer to choose them.
const LOW_RANK: usize = 128;
const FEW_ROWS: usize = 256;

/// The oldest devices that the kernels are for: Ampere.
const OLDEST: i32 = 80;
/// Older devices, a bit each.
static TOO_OLD: AtomicU64 = AtomicU64::new(0);

/// Whether our kernels compute on this tensor.
pub fn takes(x: &Tensor) -> bool {
    x.device().is_cuda() && !is_too_old(x.device()) && !forced()
}

/// Whether it is a CUDA device older than Ampere, which has no bf16.
pub fn is_too_old(device: &Device) -> bool {
    let DeviceLocation::Cuda { gpu_id } = device.location() else { return false };
    TOO_OLD.load(Ordering::Relaxed) & bit(gpu_id) != 0
}

fn bit(device: usize) -> u64 {
    1 << (device % 64)
}

/// Prepares a device that was just opened. Memory that it frees stays with the process until [`trim`].
pub fn prepare(device: &CudaDevice) -> Result<()> {
    let stream = device.cuda_stream();
    let context = stream.context();
    if CudaContext::device_count().map_err(Error::wrap)? == 1 {
        // SAFETY: every tensor is used on the device's one stream, which orders all uses.
        unsafe { device.disable_event_tracking() };
    }
    let (major, minor) = context.compute_capability().map_err(Error::wrap)?;
    if 10 * major + minor < OLDEST {
        TOO_OLD.fetch_or(bit(context.ordinal()), Ordering::Relaxed);
    }
    if !context.has_async_alloc() {
        return Ok(());
    }
    let mut keep = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a `u64`, which the driver copies.
    unsafe { mem_pool::set_attribute(pool(device)?, attribute, (&raw mut keep).cast()) }.map_err(Error::wrap)
}

/// Gives memory that no tensor has back to the driver.
pub fn trim(device: &CudaDevice) -> Result<()> {
    if !device.cuda_stream().context().has_async_alloc() {
        return Ok(());
    }
    // SAFETY: the driver keeps what is in use.
    unsafe { sys::cuMemPoolTrimTo(pool(device)?, 0) }.result().map_err(Error::wrap)
}

/// The pool that all tensors of a device come from.
pub fn pool(device: &CudaDevice) -> Result<CUmemoryPool> {
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().map_err(Error::wrap)?;
    // SAFETY: the context is that of an open device.
    unsafe { get_default_mem_pool(stream.context().cu_device()) }.map_err(Error::wrap)
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
enum Argument {
    /// An address or a count of 64 bits.
    Wide(u64),
    Word(u32),
    Number(f32),
}

impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Self::Wide(value)
    }
}

impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Self::Word(value)
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Self::Number(value)
    }
}

/// A source file and its macros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Elementwise,
    /// Attention with heads of this width, in `bf16` or `f16`.
    Attention {
        dim: usize,
        bf16: bool,
    },
}

impl Source {
    /// The file, compiled for devices of this capability.
    fn compile(self, capability: i32) -> Result<Ptx> {
        let (name, text, mut options) = match self {
            Self::Elementwise => ("elementwise.cu", include_str!("elementwise.cu"), Vec::new()),
            Self::Attention { dim, bf16 } => (
                "attention.cu",
                include_str!("attention.cu"),
                vec![format!("--define-macro=DIM={dim}"), format!("--define-macro=BF16={}", u8::from(bf16))],
            ),
        };
        options.push(format!("--gpu-architecture=compute_{capability}"));
        let options = CompileOptions { options, name: Some(name.into()), ..CompileOptions::default() };
        compile_ptx_with_opts(text, options).map_err(Error::wrap)
    }

    /// A kernel of the file on this device. Compiles and loads the file if it is the first.
    fn kernel(self, context: &Arc<CudaContext>, name: &'static str) -> Result<CudaFunction> {
        type Loaded<K, V> = Mutex<BTreeMap<(usize, Source, K), V>>;
        static FILES: Loaded<(), Arc<CudaModule>> = Mutex::new(BTreeMap::new());
        static KERNELS: Loaded<&str, CudaFunction> = Mutex::new(BTreeMap::new());
        let mut kernels = KERNELS.lock();
        let device = context.ordinal();
        if let Some(kernel) = kernels.get(&(device, self, name)) {
            return Ok(kernel.clone());
        }
        let mut files = FILES.lock();
        let file = match files.entry((device, self, ())) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(empty) => {
                let (major, minor) = context.compute_capability().map_err(Error::wrap)?;
                // A compiler that is older than the device does not know it. The driver translates for it what was compiled for
                // an older device.
                let ptx = self
                    .compile(10 * major + minor)
                    .or_else(|error| self.compile(OLDEST).map_err(|_| error))?;
                empty.insert(context.load_module(ptx).map_err(Error::wrap)?)
            }
        };
        let kernel = file.load_function(name).map_err(Error::wrap)?;
        kernels.insert((device, self, name), kernel.clone());
        Ok(kernel)
    }
}

/// A launch: blocks in two dimensions, threads of a block, and bytes of dynamic shared memory.
struct Launch {
    grid: (u32, u32),
    threads: u32,
    shared: u32,
}

impl Launch {
    fn new(grid: (u32, u32), threads: u32) -> Self {
        Self { grid, threads, shared: 0 }
    }

    /// One thread for each of these elements.
    fn elements(count: usize) -> Self {
        Self::new((count.div_ceil(BLOCK as usize) as u32, 1), BLOCK)
    }

    fn run(
        self,
        device: &CudaDevice,
        source: Source,
        name: &'static str,
        arguments: &[Argument],
    ) -> Result<()> {
        if self.grid.0 == 0 || self.grid.1 == 0 {
            return Ok(());
        }
        let stream = device.cuda_stream();
        let function = source.kernel(stream.context(), name)?;
        if self.shared > 0 {
            let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(most, self.shared as i32).map_err(Error::wrap)?;
        }
        let mut builder = stream.launch_builder(&function);
        for argument in arguments {
            match argument {
                Argument::Wide(value) => builder.arg(value),
                Argument::Word(value) => builder.arg(value),
                Argument::Number(value) => builder.arg(value),
            };
        }
        let config = LaunchConfig {
            grid_dim: (self.grid.0, self.grid.1, 1),
            block_dim: (self.threads, 1, 1),
            shared_mem_bytes: self.shared,
        };
        // SAFETY: callers pass the arguments that the kernel declares: addresses of memory of this device, whose sizes they
        // checked. Memory that is freed after this call is reused only behind the kernel, on the same stream.
        unsafe { builder.launch(config) }.map_err(Error::wrap)?;
        Ok(())
    }
}

/// The address of a contiguous tensor of this type.
fn address_of<T: CudaDType + DeviceRepr>(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cuda(storage), Some((start, _))) = (&*storage, layout.contiguous_offsets()) else {
        bail!("a kernel takes contiguous tensors on a CUDA device, not {layout:?}")
    };
    let slice = storage.as_cuda_slice::<T>()?;
    let stream = slice.stream().clone();
    let (address, _guard) = slice.device_ptr(&stream);
    Ok(address + (start * size_of::<T>()) as u64)
}

/// The address of a contiguous `f32` tensor.
fn address(tensor: &Tensor) -> Result<Argument> {
    address_of::<f32>(tensor).map(Argument::Wide)
}

/// The address of a contiguous tensor of a type of weights.
pub fn weight_address(tensor: &Tensor) -> Result<u64> {
    match tensor.dtype() {
        DType::F32 => address_of::<f32>(tensor),
        DType::F16 => address_of::<f16>(tensor),
        DType::BF16 => address_of::<bf16>(tensor),
        other => bail!("a kernel takes f32, f16 or bf16, not {other:?}"),
    }
}

/// A tensor whose values a kernel writes: all of them.
fn uninitialised<T: CudaDType + DeviceRepr>(shape: impl Into<Shape>, like: &Tensor) -> Result<Tensor> {
    let (shape, device) = (shape.into(), like.device().as_cuda_device()?);
    // SAFETY: nothing reads the values before the kernel that writes them.
    let slice = unsafe { device.alloc::<T>(shape.elem_count().max(1))? };
    let storage = CudaStorage::wrap_cuda_slice(slice, device.clone());
    Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
}

fn uninitialised_as(dtype: DType, shape: impl Into<Shape>, like: &Tensor) -> Result<Tensor> {
    match dtype {
        DType::BF16 => uninitialised::<bf16>(shape, like),
        DType::F16 => uninitialised::<f16>(shape, like),
        _ => uninitialised::<f32>(shape, like),
    }
}

/// A larger matrix that begins with the rows of `old`. The others are not initialised.
pub fn enlarged(old: Option<&Tensor>, shape: (usize, usize), dtype: DType, like: &Tensor) -> Result<Tensor> {
    let larger = uninitialised_as(dtype, shape, like)?;
    if let Some(old) = old {
        let bytes = old.elem_count() * dtype.size_in_bytes();
        if bytes > larger.elem_count() * dtype.size_in_bytes() || old.dtype() != dtype {
            bail!("{:?} does not fit {:?}", old.shape(), larger.shape());
        }
        let stream = like.device().as_cuda_device()?.cuda_stream();
        let (to, from) = (weight_address(&larger)?, weight_address(old)?);
        // SAFETY: both have this many bytes, and the stream orders the copy before the release of `old`.
        unsafe { memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }.map_err(Error::wrap)?;
    }
    Ok(larger)
}

fn empty(shape: impl Into<Shape>, like: &Tensor) -> Result<Tensor> {
    uninitialised::<f32>(shape, like)
}

/// Values on the device of `like`.
fn upload<T: candle_core::WithDType>(values: Vec<T>, like: &Tensor) -> Result<Tensor> {
    let count = values.len();
    Tensor::from_vec(values, count, like.device())
}

fn elementwise(x: &Tensor, launch: Launch, name: &'static str, arguments: &[Argument]) -> Result<()> {
    launch.run(x.device().as_cuda_device()?, Source::Elementwise, name, arguments)
}

/// Threads of a row of this width, and the launch for this many rows.
fn by_rows(rows: usize, width: usize) -> (u32, Launch) {
    let threads = if width <= WARP_ROW { 32 } else { BLOCK };
    let blocks = rows.div_ceil((BLOCK / threads) as usize);
    (threads, Launch::new((blocks as u32, 1), BLOCK))
}

pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    let (width, y) = (weight.dims1()?, empty(x.shape(), x)?);
    let rows = x.elem_count() / width;
    let (threads, launch) = by_rows(rows, width);
    let arguments = [
        address(x)?,
        address(weight)?,
        address(&y)?,
        (rows as u32).into(),
        (width as u32).into(),
        epsilon.into(),
        threads.into(),
    ];
    elementwise(x, launch, "rms_norm", &arguments)?;
    Ok(y)
}

/// Adds the input's gradient to `dx`.
pub fn rms_norm_backward(x: &Tensor, weight: &Tensor, epsilon: f32, dy: &Tensor, dx: &Tensor) -> Result<()> {
    let width = weight.dims1()?;
    let rows = x.elem_count() / width;
    let (threads, launch) = by_rows(rows, width);
    let arguments = [
        address(x)?,
        address(weight)?,
        address(dy)?,
        address(dx)?,
        (rows as u32).into(),
        (width as u32).into(),
        epsilon.into(),
        threads.into(),
    ];
    elementwise(x, launch, "rms_norm_backward", &arguments)
}

/// Rotates `x` in place: the first `2 · half` of the `head` values of each head, to angles of these rows of the tables.
pub fn rotate(
    x: &Tensor,
    (head, half): (usize, usize),
    positions: &Tensor,
    [cos, sin]: &[Tensor; 2],
    sign: f32,
) -> Result<()> {
    let (tokens, columns) = x.dims2()?;
    let heads = columns / head;
    let pairs = tokens * heads * half;
    let arguments = [
        address(x)?,
        address_of::<u32>(positions)?.into(),
        address(cos)?,
        address(sin)?,
        (pairs as u64).into(),
        (heads as u32).into(),
        (head as u32).into(),
        (half as u32).into(),
        sign.into(),
    ];
    elementwise(x, Launch::elements(pairs), "rotate", &arguments)
}

pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let out = empty(gate.shape(), gate)?;
    let count = gate.elem_count();
    let arguments = [address(gate)?, address(up)?, address(&out)?, (count as u64).into()];
    elementwise(gate, Launch::elements(count), "silu_mul", &arguments)?;
    Ok(out)
}

pub fn silu_mul_backward(gate: &Tensor, up: &Tensor, dout: &Tensor) -> Result<(Tensor, Tensor)> {
    let (dgate, dup) = (empty(gate.shape(), gate)?, empty(gate.shape(), gate)?);
    let count = gate.elem_count();
    let arguments = [
        address(gate)?,
        address(up)?,
        address(dout)?,
        address(&dgate)?,
        address(&dup)?,
        (count as u64).into(),
    ];
    elementwise(gate, Launch::elements(count), "silu_mul_backward", &arguments)?;
    Ok((dgate, dup))
}

/// `into += x`.
pub fn add(into: &Tensor, x: &Tensor) -> Result<()> {
    let count = into.elem_count();
    let arguments = [address(into)?, address(x)?, (count as u64).into()];
    elementwise(into, Launch::elements(count), "add", &arguments)
}

/// Adds a vector to each row, in place.
pub fn add_to_rows(into: &Tensor, x: &Tensor) -> Result<()> {
    let count = into.elem_count();
    let arguments = [address(into)?, address(x)?, (count as u64).into(), (x.elem_count() as u32).into()];
    elementwise(into, Launch::elements(count), "add_to_rows", &arguments)
}

/// Constants of a step of AdamW: `rate`, `beta1`, `beta2`, `weight_decay`, the two corrections, and the factor of the
/// gradient.
pub fn adamw(
    values: &Tensor,
    gradient: &Tensor,
    [first, second]: [&Tensor; 2],
    constants: [f32; 7],
) -> Result<()> {
    let count = values.elem_count();
    let mut arguments =
        vec![address(values)?, address(gradient)?, address(first)?, address(second)?, (count as u64).into()];
    arguments.extend(constants.map(Argument::Number));
    elementwise(values, Launch::elements(count), "adamw", &arguments)
}

/// 4-bit codes as bf16: `[values / 64, 64]`.
pub fn decode_nf4(codes: &Tensor, scales: &Tensor, pairs: &Tensor) -> Result<Tensor> {
    let count = codes.elem_count();
    if 2 * count != scales.elem_count() * NF4_BLOCK || pairs.elem_count() != 512 {
        bail!("{:?} codes with {:?} scales", codes.shape(), scales.shape());
    }
    let out = uninitialised::<bf16>((scales.elem_count(), NF4_BLOCK), codes)?;
    let arguments = [
        address_of::<u8>(codes)?.into(),
        address(scales)?,
        address(pairs)?,
        address_of::<bf16>(&out)?.into(),
        (count as u64).into(),
    ];
    elementwise(codes, Launch::elements(count), "decode_nf4", &arguments)?;
    Ok(out)
}

/// `out = scale · (product) + keep · out`. Factors have one type, and the result is `f32`.
fn gemm(product: Product, (a, b): (&Tensor, &Tensor), out: &Tensor, scale: f32, keep: f32) -> Result<()> {
    let ((rows, columns), (m, n)) = (a.dims2()?, out.dims2()?);
    let k = if matches!(product, Product::Weight) { rows } else { columns };
    // To cuBLAS, whose matrices are column-major, all are transposed: it computes outᵀ from bᵀ and aᵀ.
    let (n_op, t_op) = (cublasOperation_t::CUBLAS_OP_N, cublasOperation_t::CUBLAS_OP_T);
    let (op_b, op_a, shape_a, shape_b) = match product {
        Product::Forward => (t_op, n_op, (m, k), (n, k)),
        Product::Backward => (n_op, n_op, (m, k), (k, n)),
        Product::Weight => (n_op, t_op, (k, m), (k, n)),
    };
    if a.dims2()? != shape_a || b.dims2()? != shape_b || a.dtype() != b.dtype() {
        bail!("{product:?} product of {:?} and {:?} to {:?}", a.shape(), b.shape(), out.shape());
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    let kind = match a.dtype() {
        DType::BF16 => cudaDataType_t::CUDA_R_16BF,
        DType::F16 => cudaDataType_t::CUDA_R_16F,
        _ => cudaDataType_t::CUDA_R_32F,
    };
    let (at_a, at_b, at_out) = (weight_address(a)?, weight_address(b)?, address_of::<f32>(out)?);
    let blas = out.device().as_cuda_device()?.cublas_handle();
    // SAFETY: the addresses are of contiguous matrices of the checked shapes, on the handle's device and stream.
    unsafe {
        gemm_ex(
            *blas.handle(),
            op_b,
            op_a,
            n as i32,
            m as i32,
            k as i32,
            (&raw const scale).cast(),
            at_b as *const _,
            kind,
            shape_b.1 as i32,
            at_a as *const _,
            kind,
            shape_a.1 as i32,
            (&raw const keep).cast(),
            at_out as *mut _,
            cudaDataType_t::CUDA_R_32F,
            n as i32,
            cublasComputeType_t::CUBLAS_COMPUTE_32F,
            cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    }
    .map_err(Error::wrap)
}

/// Whether a product of these rows may take the kernels for low ranks.
fn is_small(kind: Product, rows: usize, weight: &Tensor) -> bool {
    matches!(kind, Product::Forward) && rows <= FEW_ROWS && weight.dtype() == DType::F32
}

/// `scale · (product)` in `f32`. `x` is first rounded to the type of `weight`.
pub fn product(kind: Product, x: &Tensor, weight: &Tensor, scale: f32) -> Result<Tensor> {
    let columns = if matches!(kind, Product::Forward) { weight.dims()[0] } else { weight.dims()[1] };
    let rows = if matches!(kind, Product::Weight) { x.dims()[1] } else { x.dims()[0] };
    let out = empty((rows, columns), x)?;
    if is_small(kind, rows, weight) && columns <= LOW_RANK {
        let inputs = weight.dims()[1];
        let warps = (BLOCK / 32) as usize;
        let arguments = [
            address(x)?,
            address(weight)?,
            address(&out)?,
            (inputs as u32).into(),
            (columns as u32).into(),
            scale.into(),
        ];
        let launch = Launch::new((columns.div_ceil(warps) as u32, rows as u32), BLOCK);
        elementwise(x, launch, "few_outputs", &arguments)?;
        return Ok(out);
    }
    gemm(kind, (&x.to_dtype(weight.dtype())?, weight), &out, scale, 0.0)?;
    Ok(out)
}

/// Adds a [`product`] to `into`.
pub fn add_product(into: &Tensor, kind: Product, x: &Tensor, weight: &Tensor, scale: f32) -> Result<()> {
    let rows = x.dims()[0];
    if is_small(kind, rows, weight) && weight.dims()[1] <= LOW_RANK {
        let (outputs, inputs) = weight.dims2()?;
        let arguments = [
            address(x)?,
            address(weight)?,
            address(into)?,
            (rows as u32).into(),
            (inputs as u32).into(),
            (outputs as u32).into(),
            scale.into(),
        ];
        let grid = (outputs.div_ceil(BLOCK as usize) as u32, rows.div_ceil(ROWS) as u32);
        return elementwise(x, Launch::new(grid, BLOCK), "few_inputs", &arguments);
    }
    gemm(kind, (&x.to_dtype(weight.dtype())?, weight), into, scale, 1.0)
}

/// Draws a token from each row of logits, with these numbers in [0, 1) and temperatures. Returns the tokens and their
/// log-probabilities at temperature 1.
pub fn draw(logits: &Tensor, draws: Vec<f64>, temperatures: Vec<f32>) -> Result<(Vec<u32>, Vec<f32>)> {
    let (rows, vocabulary) = logits.dims2()?;
    let (draws, temperatures) = (upload(draws, logits)?, upload(temperatures, logits)?);
    let (tokens, logprobs) = (uninitialised::<u32>(rows, logits)?, empty(rows, logits)?);
    let arguments = [
        address(logits)?,
        address_of::<f64>(&draws)?.into(),
        address(&temperatures)?,
        address_of::<u32>(&tokens)?.into(),
        address(&logprobs)?,
        (vocabulary as u32).into(),
    ];
    elementwise(logits, Launch::new((rows as u32, 1), ROW), "draw", &arguments)?;
    Ok((tokens.to_vec1()?, logprobs.to_vec1()?))
}

/// Tokens of rows, one after the other, and where each row's begin.
struct Targets {
    starts: Tensor,
    tokens: Tensor,
    count: usize,
}

impl Targets {
    fn new(tokens: &[Vec<u32>], like: &Tensor) -> Result<Self> {
        let mut starts = vec![0];
        for row in tokens {
            starts.push(starts[starts.len() - 1] + row.len() as u32);
        }
        let count = starts[starts.len() - 1] as usize;
        // A tensor has at least one value.
        let mut all = tokens.concat();
        all.resize(count.max(1), 0);
        Ok(Self { starts: upload(starts, like)?, tokens: upload(all, like)?, count })
    }

    /// Runs a kernel over the rows of logits, with a value for each token.
    fn run(&self, logits: &Tensor, name: &'static str, values: &Tensor) -> Result<()> {
        let (rows, vocabulary) = logits.dims2()?;
        let arguments = [
            address(logits)?,
            address_of::<u32>(&self.starts)?.into(),
            address_of::<u32>(&self.tokens)?.into(),
            address(values)?,
            (vocabulary as u32).into(),
        ];
        elementwise(logits, Launch::new((rows as u32, 1), ROW), name, &arguments)
    }
}

/// Log-probabilities of these tokens of each row of logits.
pub fn log_probabilities(logits: &Tensor, tokens: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    let targets = Targets::new(tokens, logits)?;
    let found = empty(targets.count.max(1), logits)?;
    targets.run(logits, "log_probabilities", &found)?;
    let mut found = found.to_vec1::<f32>()?.into_iter();
    Ok(tokens.iter().map(|row| found.by_ref().take(row.len()).collect()).collect())
}

/// Overwrites logits with Σ dloss_dlogp · (1\[token\] − p) over each row's tokens.
pub fn log_probabilities_backward(
    logits: &Tensor,
    tokens: &[Vec<u32>],
    dloss_dlogp: &[Vec<f32>],
) -> Result<()> {
    let targets = Targets::new(tokens, logits)?;
    let mut slopes = dloss_dlogp.concat();
    slopes.resize(targets.count.max(1), 0.0);
    targets.run(logits, "log_probabilities_backward", &upload(slopes, logits)?)
}

#[cfg(test)]
mod tests;
