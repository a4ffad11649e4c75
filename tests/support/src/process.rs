//! Signals between processes, and when a process has to end.

use std::future::poll_fn;
use std::io;
use std::process::Child;
use std::task::Poll;

use flume::Receiver;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tokio::signal::unix::{SignalKind, signal};

/// Sends `signal` to a process that this test started and has not reaped.
pub fn send_signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Ready when standard input closes, and so when the process that holds the other end has ended.
pub fn stdin_closed() -> impl Future<Output = ()> + Send + 'static {
    let (_, closed) = stdin_lines();
    async move { while closed.recv_async().await.is_ok() {} }
}

/// The lines of standard input, and a channel that is closed as soon as standard input closes, for
/// a caller that may be busy with a line then.
pub(crate) fn stdin_lines() -> (Receiver<String>, Receiver<()>) {
    let (sender, lines) = flume::unbounded();
    let (open, closed) = flume::bounded(0);
    // A thread, because a runtime does not shut down while it reads standard input.
    std::thread::spawn(move || {
        let _open = open;
        for line in io::stdin().lines().map_while(Result::ok) {
            sender.send(line).ok();
        }
    });
    (lines, closed)
}

/// Ready when a signal asks this process to end: Ctrl-C, `kill`, or a closed terminal.
pub(crate) fn stop_signal() -> io::Result<impl Future<Output = ()> + Send> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(poll_fn(move |context| {
        let mut signals = [&mut interrupt, &mut terminate, &mut hangup].into_iter();
        if signals.any(|signal| signal.poll_recv(context).is_ready()) {
            return Poll::Ready(());
        }
        Poll::Pending
    }))
}
