//! The signals that are passed on to the command, or end a wait.

use std::future::poll_fn;
use std::io::IsTerminal;
use std::task::Poll;

use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{self, SignalKind};

/// Receives signals instead of dying of them.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

const PASSED_ON: [(Signal, SignalKind); 6] = [
    (Signal::INT, SignalKind::interrupt()),
    (Signal::TERM, SignalKind::terminate()),
    (Signal::HUP, SignalKind::hangup()),
    (Signal::QUIT, SignalKind::quit()),
    (Signal::USR1, SignalKind::user_defined1()),
    (Signal::USR2, SignalKind::user_defined2()),
];

impl Signals {
    pub(crate) fn receive() -> std::io::Result<Self> {
        let listen = |(signal, kind)| Ok((signal, unix::signal(kind)?));
        PASSED_ON.into_iter().map(listen).collect::<std::io::Result<_>>().map(Self)
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks to end.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::USR1 && signal != Signal::USR2 {
                return signal;
            }
        }
    }
}

/// Sends `signal` to the process `pid`, unless a terminal has sent it there already.
pub(crate) fn pass_on(pid: u32, signal: Signal) {
    let by_terminal = signal == Signal::INT || signal == Signal::QUIT;
    if !(by_terminal && std::io::stdin().is_terminal()) {
        send(pid, signal);
    }
}

/// Sends `signal` to the process `pid`. One that has just ended gets none.
pub(crate) fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
