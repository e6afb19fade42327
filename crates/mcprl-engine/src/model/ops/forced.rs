//! Whether CPU tensors take the path of other devices, [`composed`](super::composed).

#[cfg(test)]
thread_local! {
    static FORCED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether CPU tensors take that path: on the current thread of a test, and in a process with
/// `MCPRL_KERNELS=composed`, which simulates a device on the CPU.
pub fn forced() -> bool {
    #[cfg(test)]
    return FORCED.get();
    #[cfg(not(test))]
    {
        static ASKED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *ASKED.get_or_init(|| std::env::var("MCPRL_KERNELS").as_deref() == Ok("composed"))
    }
}

/// CPU tensors of this thread take that path until the guard is dropped.
#[cfg(test)]
pub fn force() -> Forced {
    FORCED.set(true);
    Forced(())
}

#[cfg(test)]
pub struct Forced(());

#[cfg(test)]
impl Drop for Forced {
    fn drop(&mut self) {
        FORCED.set(false);
    }
}
