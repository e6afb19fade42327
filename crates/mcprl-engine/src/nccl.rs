//! NCCL between the CUDA devices of this process.
//!
//! The communicators cannot move between threads, so they have their own thread. Operations are queued on the
//! stream of each tensor's device, which orders them with earlier and later work. Nothing here waits for a
//! device.

use std::sync::mpsc::{Receiver, Sender, channel};

use candle_core::{
    CpuStorage, CudaStorage, Device, InplaceOp1, Layout, Result, Tensor, bail,
    cuda_backend::cudarc::nccl::{Comm, ReduceOp, group_end, group_start},
};

use super::EngineError;

#[derive(Clone, Copy)]
enum Kind {
    Sum,
    Broadcast,
}

struct Command {
    kind: Kind,
    /// Per device, the same tensors.
    tensors: Vec<Vec<Tensor>>,
    reply: Sender<Result<()>>,
}

/// A ring or tree through all devices of a policy. The first device is its root.
pub struct Link(Sender<Command>);

impl Link {
    /// None if there is one device, or if they are not CUDA devices.
    pub fn between(devices: &[&Device]) -> std::result::Result<Option<Self>, EngineError> {
        if devices.len() < 2 || !devices.iter().all(|device| device.is_cuda()) {
            return Ok(None);
        }
        let streams = devices.iter().map(|device| Ok(device.as_cuda_device()?.cuda_stream()));
        let streams = streams.collect::<Result<Vec<_>>>()?;
        let (sender, commands) = channel();
        let (ready, started) = channel();
        std::thread::Builder::new()
            .name("nccl".into())
            .spawn(move || match Comm::from_devices(streams) {
                Ok(comms) => {
                    _ = ready.send(Ok(()));
                    serve(&comms, &commands);
                }
                Err(error) => _ = ready.send(Err(failed("its communicators", error))),
            })
            .map_err(candle_core::Error::from)?;
        started.recv().unwrap_or_else(|_| Err(ended()))?;
        Ok(Some(Self(sender)))
    }

    /// Adds each tensor of the other devices to that of the first.
    pub fn sum(&self, tensors: Vec<Vec<Tensor>>) -> std::result::Result<(), EngineError> {
        self.call(Kind::Sum, tensors)
    }

    /// Overwrites each tensor of the other devices with that of the first.
    pub fn broadcast(&self, tensors: Vec<Vec<Tensor>>) -> std::result::Result<(), EngineError> {
        self.call(Kind::Broadcast, tensors)
    }

    fn call(&self, kind: Kind, tensors: Vec<Vec<Tensor>>) -> std::result::Result<(), EngineError> {
        let (reply, done) = channel();
        self.0.send(Command { kind, tensors, reply }).map_err(|_| ended())?;
        Ok(done.recv().unwrap_or_else(|_| Err(ended()))?)
    }
}

fn serve(comms: &[Comm], commands: &Receiver<Command>) {
    while let Ok(Command { kind, tensors, reply }) = commands.recv() {
        // The receiver is gone if the step was cancelled.
        _ = reply.send(grouped(comms, kind, &tensors));
    }
}

/// Launches all tensors of all devices as one group. Separately, the first device would wait for a call that
/// never comes.
fn grouped(comms: &[Comm], kind: Kind, tensors: &[Vec<Tensor>]) -> Result<()> {
    group_start().map_err(|error| failed("a group", error))?;
    let each = || {
        for (comm, tensors) in comms.iter().zip(tensors) {
            tensors.iter().try_for_each(|tensor| tensor.inplace_op1(&Call { comm, kind }))?;
        }
        Ok(())
    };
    let queued = each();
    group_end().map_err(|error| failed("a group", error))?;
    queued
}

struct Call<'a> {
    comm: &'a Comm,
    kind: Kind,
}

impl InplaceOp1 for Call<'_> {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("NCCL is for tensors on CUDA devices")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("NCCL needs a contiguous tensor, found {layout:?}")
        };
        let values = storage.as_cuda_slice_mut::<f32>()?;
        let Some(mut values) = values.try_slice_mut(start..end) else {
            bail!("a tensor reaches beyond its storage")
        };
        let done = match self.kind {
            Kind::Sum => self.comm.reduce_in_place(&mut values, &ReduceOp::Sum, 0),
            Kind::Broadcast => self.comm.broadcast_in_place(&mut values, 0),
        };
        done.map(|_| ()).map_err(|error| failed(self.name(), error))
    }
}

fn failed(what: &str, error: impl std::fmt::Debug) -> candle_core::Error {
    candle_core::Error::msg(format!("NCCL failed at {what}: {error:?}"))
}

fn ended() -> candle_core::Error {
    candle_core::Error::msg("the thread of the NCCL communicators has ended")
}
