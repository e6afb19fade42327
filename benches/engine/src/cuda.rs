//! Peak memory of a CUDA device. All of candle's allocations come from the device's memory pool, which
//! records its peak. Memory of cuBLAS and the driver is not counted.

#![expect(unsafe_code, reason = "the pool's peak has no safe wrapper")]

use candle_core::{
    Device,
    cuda_backend::cudarc::driver::{
        CudaContext,
        result::mem_pool,
        sys::{CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_USED_MEM_HIGH, CUmemoryPool},
    },
};

use mcprl_engine::model::ops;

fn context(device: &Device) -> Option<std::sync::Arc<CudaContext>> {
    Some(device.as_cuda_device().ok()?.cuda_stream().context().clone())
}

fn pool(device: &Device) -> Option<CUmemoryPool> {
    ops::cuda::pool(device.as_cuda_device().ok()?).ok()
}

pub fn name(device: &Device) -> Option<String> {
    context(device)?.name().ok()
}

/// Resets the device's peak. Returns whether that worked.
pub fn forget_peak(device: &Device) -> bool {
    let forget = || {
        let pool = pool(device)?;
        let mut none = 0u64;
        // SAFETY: the pool belongs to the device; the attribute is a u64, and 0 resets it.
        unsafe { mem_pool::set_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut none).cast()) }.ok()
    };
    forget().is_some()
}

/// The most bytes in use since the last reset.
pub fn peak(device: &Device) -> Option<u64> {
    let pool = pool(device)?;
    let mut bytes = 0u64;
    // SAFETY: the pool belongs to the device, and the attribute is a u64.
    unsafe { mem_pool::get_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut bytes).cast()) }.ok()?;
    Some(bytes)
}
