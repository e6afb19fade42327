//! The peak rates of the machine.

use std::{hint::black_box, time::Instant};

use candle_core::{DType, Device, Tensor};
use mcprl_base::error::Result;
use mcprl_engine::{
    EngineError,
    model::{
        kernels::{Format, Frozen, Level, multiplies_bf16, multiplies_tiles},
        ops,
    },
};
use serde::{Deserialize, Serialize};

use super::cuda;

/// Peak rates, measured during the benchmark. Other load on the machine lowers them as it lowers the results.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Billions of operations per second in products that fit the caches, over all threads.
    pub f32: f64,
    pub bf16: f64,
    /// Billions of bytes read from memory per second, over all threads; on a device, read and written by a
    /// copy.
    pub memory: f64,
}

/// The seconds of the fastest of several runs: noise only ever adds time.
pub fn fastest(runs: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Sum over threads of each thread's rate in its fastest run.
fn together(threads: usize, amount: f64, runs: usize, work: impl Fn() + Sync) -> Result<f64> {
    let seconds = fastest(runs, || {
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(&work);
            }
            work();
        });
        Ok(())
    })?;
    Ok(threads as f64 * amount / seconds / 1e9)
}

impl Machine {
    pub fn measure(threads: usize) -> Result<Self> {
        const REPEATS: usize = 10;
        let (m, n, k) = (240, 1024, 512);
        let rate = |format| {
            let weight = Frozen::new(format, n, k, |_, row| row.fill(0.25));
            let x = vec![0.5; m * k];
            together(threads, (2 * m * n * k * REPEATS) as f64, 10, || {
                let mut y = vec![0.0; m * n];
                for _ in 0..REPEATS {
                    weight.forward(&x, &mut y, false);
                }
                black_box(&y);
            })
        };
        let block = vec![1u64; 32 << 20];
        let memory = together(threads, size_of_val(block.as_slice()) as f64, 4, || {
            let sums = block.chunks_exact(64).fold([0u64; 64], |mut sums, chunk| {
                sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum ^= value);
                sums
            });
            black_box(sums);
        })?;
        Ok(Self { f32: rate(Format::F32)?, bf16: rate(Format::Bf16)?, memory })
    }

    /// Measures a device with candle's operations.
    pub fn measure_device(device: &Device) -> Result<Self> {
        const REPEATS: usize = 5;
        // A device needs large matrices to be busy. On the CPU they would take minutes.
        let n: usize = if device.is_cpu() { 128 } else { 8192 };
        let synchronized = |work: &dyn Fn() -> candle_core::Result<()>| {
            let run = || (0..REPEATS).try_for_each(|_| work()).and_then(|()| device.synchronize());
            // Loading and kernel selection on first use are not timed.
            run().map_err(EngineError::from)?;
            fastest(3, || Ok(run().map_err(EngineError::from)?))
        };
        let random = |dtype| Tensor::randn(0f32, 1.0, (n, n), device)?.to_dtype(dtype);
        let rate = |dtype| -> Result<f64> {
            let (x, y) =
                (random(dtype).map_err(EngineError::from)?, random(dtype).map_err(EngineError::from)?);
            let seconds = synchronized(&|| x.matmul(&y).map(drop))?;
            Ok((REPEATS * 2 * n * n * n) as f64 / seconds / 1e9)
        };
        let (f32, bf16) = (rate(DType::F32)?, rate(DType::BF16)?);
        let block = Tensor::ones((4, n, n), DType::F32, device).map_err(EngineError::from)?;
        let seconds = synchronized(&|| block.copy().map(drop))?;
        let memory = (REPEATS * 2 * 4 * block.elem_count()) as f64 / seconds / 1e9;
        Ok(Self { f32, bf16, memory })
    }
}

/// The name of the device, or of the CPU kernels.
pub fn name(device: &Device) -> String {
    match cuda::name(device) {
        Some(name) => name,
        None if ops::composed::forced() => "composed".into(),
        None if multiplies_tiles() => "avx512 with amx".into(),
        None if multiplies_bf16() => "avx512 with bf16".into(),
        None => Level::get().name().into(),
    }
}

/// Resets the memory peak: the device's, or the process's where the system allows it.
pub fn forget_peak(device: &Device) {
    if !cuda::forget_peak(device) {
        // Without the reset the peak is that of the whole process: larger, never smaller.
        _ = std::fs::write("/proc/self/clear_refs", "5");
    }
}

/// Peak memory in MiB since [`forget_peak`]: the device's, or the process's on the CPU. 0 where the system
/// does not report it.
pub fn peak_mib(device: &Device) -> f64 {
    if let Some(bytes) = cuda::peak(device) {
        return bytes as f64 / f64::from(1 << 20);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
