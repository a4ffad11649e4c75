//! Signals between processes, and when a process has to end.

use std::future::poll_fn;
use std::io;
use std::process::Child;
use std::task::Poll;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Sends `signal` to a process that this test started and has not reaped.
pub fn send_signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Ready when standard input closes, and so when the process that holds the other end has ended.
pub fn stdin_closed() -> impl Future<Output = ()> + Send + 'static {
    let (sender, closed) = oneshot::channel::<()>();
    // A thread, because a runtime does not shut down while it reads standard input.
    std::thread::spawn(move || {
        io::copy(&mut io::stdin().lock(), &mut io::sink()).ok();
        drop(sender);
    });
    async {
        closed.await.ok();
    }
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
