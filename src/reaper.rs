//! Process 1 of a container adopts what other processes leave behind, and must reap it. This program cannot do that beside the
//! waits for its own children. So as process 1 it starts itself again, passes on signals to that process, and reaps.

use std::{
    io::{self, IsTerminal},
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use rustix::{
    process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait},
    termios::{tcgetpgrp, tcsetpgrp},
};
use tokio::signal::unix::{Signal as Received, SignalKind, signal};

/// Signals that are passed on. A terminal sends the last two to its whole foreground group.
const PASSED_ON: [Signal; 6] =
    [Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2, Signal::INT, Signal::QUIT];
const OF_TERMINAL: [Signal; 2] = [Signal::INT, Signal::QUIT];

/// Runs `main`, in another process if this is process 1.
pub fn beside(main: impl FnOnce() -> ExitCode) -> ExitCode {
    if std::process::id() != 1 {
        return main();
    }
    // Where no process can be started, no child can be left behind either.
    reap().unwrap_or_else(|_| main())
}

/// Runs this program as a child, and reaps until it ends. Returns its exit code.
fn reap() -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let context = runtime.enter();
    let of = |signal_: Signal| Ok((signal(SignalKind::from_raw(signal_.as_raw()))?, signal_));
    let mut received: Vec<(Received, Signal)> = PASSED_ON.into_iter().map(of).collect::<io::Result<_>>()?;
    let mut ended = signal(SignalKind::child())?;
    drop(context);
    let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    let stdin = io::stdin();
    let leads_terminal = tcgetpgrp(&stdin).is_ok_and(|group| group == Pid::INIT);
    if leads_terminal {
        command.process_group(0);
    }
    let id = Pid::from_child(&command.spawn()?);
    if leads_terminal {
        // It may have been stopped for reading before it was in the foreground.
        _ = tcsetpgrp(&stdin, id);
        _ = kill_process_group(id, Signal::CONT);
    } else if stdin.is_terminal() {
        received.retain(|(_, signal)| !OF_TERMINAL.contains(signal));
    }
    runtime.block_on(async {
        loop {
            let next = received.iter_mut().map(|(received, signal)| {
                let signal = *signal;
                Box::pin(async move { received.recv().await.map(|()| signal) })
            });
            tokio::select! {
                (signal, ..) = futures::future::select_all(next) => {
                    if let Some(signal) = signal {
                        _ = kill_process(id, signal);
                    }
                }
                _ = ended.recv() => {
                    while let Ok(Some((process, status))) = wait(WaitOptions::NOHANG) {
                        if process == id {
                            let code = status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal));
                            return Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)));
                        }
                    }
                }
            }
        }
    })
}
