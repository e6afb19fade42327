//! The forward kernel of candle-flash-attn for sequences of variable length. It returns the log-sum-exp,
//! which merging needs and the crate's own functions do not return.

#![expect(unsafe_code, reason = "the kernel is a C function")]

use core::ffi::{c_int, c_void};
use std::ops::Deref;

use candle_core::{
    CudaStorage, DType, Layout, Result, Storage, Tensor, bail,
    cuda_backend::{
        CudaDType,
        cudarc::driver::{CudaView, DevicePtr, DevicePtrMut, DeviceRepr, ValidAsZeroBits},
    },
    op::BackpropOp,
};
// The library that contains the kernel.
use candle_flash_attn as _;
use half::{bf16, f16};

use super::{Part, Sequences};

unsafe extern "C" {
    /// As defined in `kernels/flash_api.cu` of candle-flash-attn 0.11.
    fn run_mha(
        q: *const c_void,
        k: *const c_void,
        v: *const c_void,
        out: *const c_void,
        softmax_lse: *const c_void,
        alibi_slopes: *const c_void,
        cu_seqlens_q: *const i32,
        cu_seqlens_k: *const i32,
        q_batch_stride: u32,
        k_batch_stride: u32,
        v_batch_stride: u32,
        o_batch_stride: u32,
        alibi_slopes_batch_stride: u32,
        q_row_stride: u32,
        k_row_stride: u32,
        v_row_stride: u32,
        o_row_stride: u32,
        q_head_stride: u32,
        k_head_stride: u32,
        v_head_stride: u32,
        o_head_stride: u32,
        b: u32,
        h: u32,
        h_k: u32,
        d: u32,
        d_rounded: u32,
        softmax_scale: f32,
        seqlen_q: u32,
        seqlen_k: u32,
        seqlen_q_rounded: u32,
        seqlen_k_rounded: u32,
        total_q: u32,
        is_bf16: c_int,
        is_causal: c_int,
        unpadded_lse: c_int,
        window_size_left: c_int,
        window_size_right: c_int,
        softcap: f32,
        block_table: *const i32,
        block_table_batch_stride: u32,
        page_block_size: c_int,
        mm_prefix_ranges: *const i32,
        mm_prefix_range_batch_stride: u32,
        max_mm_prefix_ranges: c_int,
        stream: *mut c_void,
    );
}

/// Widest heads that the kernel supports. Their width is a multiple of 8.
const WIDEST: usize = 256;

/// Whether the kernel supports heads of this width on this device.
pub fn takes(device: &candle_core::Device, dim: usize) -> bool {
    device.is_cuda() && dim.is_multiple_of(8) && dim <= WIDEST
}

pub fn attend(of: &Sequences) -> Result<Part> {
    match of.q.dtype() {
        DType::F16 => typed::<f16>(of, 0),
        DType::BF16 => typed::<bf16>(of, 1),
        other => bail!("flash attention multiplies f16 or bf16, not {other:?}"),
    }
}

fn typed<T: CudaDType + DeviceRepr + ValidAsZeroBits>(of: &Sequences, is_bf16: c_int) -> Result<Part> {
    let (heads, dim) = (of.attention.heads, of.attention.heads.dim);
    let (rows, width) = of.q.dims2()?;
    let (keys, key_width) = of.k.dims2()?;
    let lengths = |of_pair: fn(&(usize, usize)) -> usize| of.lengths.iter().map(of_pair);
    let [longest_q, longest_k] = [lengths(|l| l.0), lengths(|l| l.1)].map(|l| l.max().unwrap_or(0));
    let fits = lengths(|l| l.0).sum::<usize>() == rows && lengths(|l| l.1).sum::<usize>() == keys;
    let shapes = width == heads.query * dim && key_width == heads.kv * dim && of.v.dims() == of.k.dims();
    if !fits || !shapes || of.lengths.is_empty() || !takes(of.q.device(), dim) {
        bail!("flash attention of {:?} over {:?} in {:?}", of.q.shape(), of.k.shape(), of.lengths);
    }
    let device = of.q.device().as_cuda_device()?;
    let starts = |of_pair: fn(&(usize, usize)) -> usize| -> Result<Tensor> {
        let mut starts = vec![0u32];
        for length in lengths(of_pair) {
            starts.push(starts[starts.len() - 1] + length as u32);
        }
        let count = starts.len();
        Tensor::from_vec(starts, count, of.q.device())
    };
    let (starts_q, starts_k) = (starts(|l| l.0)?, starts(|l| l.1)?);
    let stream = device.cuda_stream();
    let mut out = device.alloc_zeros::<T>(rows * width)?;
    // `[heads, rows]`
    let mut lse = device.alloc_zeros::<f32>(heads.query * rows)?;
    let tensors = [&of.q, &of.k, &of.v, &starts_q, &starts_k].map(Tensor::storage_and_layout);
    let [q, k, v] = [&tensors[0], &tensors[1], &tensors[2]].map(view::<T>);
    let [starts_q, starts_k] = [&tensors[3], &tensors[4]].map(view::<u32>);
    let (q, k, v, starts_q, starts_k) = (q?, k?, v?, starts_q?, starts_k?);
    {
        let ((q, _q), (k, _k), (v, _v)) =
            (q.device_ptr(&stream), k.device_ptr(&stream), v.device_ptr(&stream));
        let (starts_q, _starts_q) = starts_q.device_ptr(&stream);
        let (starts_k, _starts_k) = starts_k.device_ptr(&stream);
        let (out, _out) = out.device_ptr_mut(&stream);
        let (lse, _lse) = lse.device_ptr_mut(&stream);
        // SAFETY: the pointers are to contiguous tensors of these shapes on the stream's device, which live
        // until the call is queued. `lengths` add up to their rows. The results were allocated for `rows`.
        unsafe {
            run_mha(
                q as _,
                k as _,
                v as _,
                out as _,
                lse as _,
                std::ptr::null(),
                starts_q as _,
                starts_k as _,
                0,
                0,
                0,
                0,
                0,
                width as u32,
                key_width as u32,
                key_width as u32,
                width as u32,
                dim as u32,
                dim as u32,
                dim as u32,
                dim as u32,
                of.lengths.len() as u32,
                heads.query as u32,
                heads.kv as u32,
                dim as u32,
                dim.next_multiple_of(32) as u32,
                of.attention.scale,
                longest_q as u32,
                longest_k as u32,
                longest_q.next_multiple_of(128) as u32,
                longest_k.next_multiple_of(128) as u32,
                rows as u32,
                is_bf16,
                c_int::from(of.causal),
                1,
                // No window. For causal sequences, the window that ends at the row.
                if of.causal { longest_k as c_int } else { -1 },
                if of.causal { 0 } else { -1 },
                0.0,
                std::ptr::null(),
                0,
                0,
                std::ptr::null(),
                0,
                0,
                stream.cu_stream() as _,
            );
        }
    }
    let tensor = |storage, shape: (usize, usize, usize)| {
        Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
    };
    let out = tensor(CudaStorage::wrap_cuda_slice(out, device.clone()), (rows, heads.query, dim))
        .to_dtype(DType::F32)?;
    let lse = tensor(CudaStorage::wrap_cuda_slice(lse, device.clone()), (heads.query, rows, 1))
        .transpose(0, 1)?
        .contiguous()?;
    Ok(Part { out, lse })
}

/// The values of a contiguous tensor on a CUDA device.
fn view<'a, T: CudaDType>(
    (storage, layout): &'a (impl Deref<Target = Storage>, &Layout),
) -> Result<CudaView<'a, T>> {
    let (Storage::Cuda(storage), Some((start, end))) = (&**storage, layout.contiguous_offsets()) else {
        bail!("flash attention takes contiguous tensors on a CUDA device, not {layout:?}")
    };
    match storage.as_cuda_slice::<T>()?.try_slice(start..end) {
        Some(view) => Ok(view),
        None => bail!("a tensor reaches beyond its storage"),
    }
}
