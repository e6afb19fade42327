#![expect(unsafe_code, reason = "the allocator is spoken to through its C interface")]

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
    fn mi_collect(force: bool);
}

fn give_back() {
    // SAFETY: any thread may ask for it at any time.
    unsafe { mi_collect(true) };
}

fn main() -> ExitCode {
    // SAFETY: an option that exists; `MIMALLOC_PURGE_DELAY` overrules it.
    unsafe { mi_option_set_default(PURGE_DELAY, TEN_SECONDS) };
    mcprl::engine::set_give_back(give_back);
    mcprl::child::use_small_pages();
    mcprl::cli::main()
}
