mod allocator;
mod reaper;

use std::process::ExitCode;

fn main() -> ExitCode {
    reaper::beside(|| {
        allocator::configure();
        mcprl::cli::main(allocator::trim)
    })
}
