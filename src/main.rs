#![expect(unsafe_code, reason = "an option of the allocator is set through its C interface")]

use std::{
    ffi::{c_int, c_long},
    process::ExitCode,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3: for how long memory that was freed stays ours.
const PURGE_DELAY: c_int = 15;
/// A training step takes again what the last one freed; given back in between, the system clears it anew. The peak of
/// small runs grows by some tens of MiB.
const TEN_SECONDS: c_long = 10_000;

unsafe extern "C" {
    fn mi_option_set_default(option: c_int, value: c_long);
}

fn main() -> ExitCode {
    // SAFETY: an option that exists; `MIMALLOC_PURGE_DELAY` overrules it.
    unsafe { mi_option_set_default(PURGE_DELAY, TEN_SECONDS) };
    mcprl::cli::main()
}
