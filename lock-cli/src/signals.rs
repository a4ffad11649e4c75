//! The signals that are passed on to the command, or end a wait.

use std::future::pending;
use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, getpid, getsid, kill_process, kill_process_group, test_kill_process_group,
};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::{Cause, Origin};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Receives signals instead of dying of them.
pub(crate) struct Signals {
    received: mpsc::Receiver<Received>,
    receiving: Handle,
}

/// A signal, and whether the terminal sent it, to all of the group in the foreground.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    pub(crate) signal: Signal,
    by_terminal: bool,
}

/// How many signals may wait until they are passed on. More at once say nothing new; those that
/// follow are dropped, as the system itself drops a signal of which one is pending.
const PENDING: usize = 64;

const PASSED_ON: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

impl Signals {
    /// Receives those that were not ignored when lockctl was started, as `nohup` does.
    pub(crate) fn receive() -> std::io::Result<Self> {
        let ignored = ignored();
        let is_heeded = |signal: &Signal| ignored >> (signal.as_raw() - 1) & 1 == 0;
        let heeded = PASSED_ON.into_iter().filter(is_heeded);
        let mut arriving = SignalsInfo::<WithOrigin>::new(heeded.map(Signal::as_raw))?;
        let receiving = arriving.handle();
        let (sender, received) = mpsc::channel(PENDING);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in &mut arriving {
                let Some(received) = Received::new(&origin) else { continue };
                if let Err(TrySendError::Closed(_)) = sender.try_send(received) {
                    return;
                }
            }
        })?;
        Ok(Self { received, receiving })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Received {
        match self.received.recv().await {
            Some(received) => received,
            // The thread goes on for as long as this, so there is always a next one.
            None => pending().await,
        }
    }

    /// The next signal that asks to end.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            let Received { signal, .. } = self.next().await;
            if ends(signal) {
                return signal;
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.receiving.close();
    }
}

impl Received {
    fn new(origin: &Origin) -> Option<Self> {
        let signal = PASSED_ON.into_iter().find(|signal| signal.as_raw() == origin.signal)?;
        let by_process = matches!(origin.cause, Cause::Sent(_));
        // Of a connection that is lost, the terminal tells the leader of the session alone.
        let to_leader = signal == Signal::HUP && getsid(None) == Ok(getpid());
        Some(Self { signal, by_terminal: !by_process && !to_leader })
    }
}

/// Whether the signal asks to end.
pub(crate) fn ends(signal: Signal) -> bool {
    signal != Signal::USR1 && signal != Signal::USR2
}

/// The signals that this process ignores, as bits; none where the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Where the signals for a command go.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// The command and all processes that it started.
    Group(Pid),
    /// The command alone, which shares lockctl's group, so that it can read from the terminal. The
    /// terminal sends its signals to the whole group. A process may send one to lockctl alone, as
    /// `kill PID` does, or to the group, as `kill %1` and `timeout` do. Lockctl cannot tell which,
    /// and passes it on: rather twice than not at all.
    Process(Pid),
}

/// How often it is checked whether a group has ended.
const LOOK: Duration = Duration::from_millis(20);

impl Target {
    /// Whether a command gets a group of its own.
    pub(crate) fn is_group() -> bool {
        !std::io::stdin().is_terminal()
    }

    /// The command with the process id `pid`.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        Some(if Self::is_group() { Self::Group(pid) } else { Self::Process(pid) })
    }

    /// Sends what lockctl received, unless the terminal has sent it there already.
    pub(crate) fn pass_on(self, received: Received) {
        let Received { signal, by_terminal } = received;
        if !(by_terminal && matches!(self, Self::Process(_))) {
            self.send(signal);
        }
    }

    /// Sends `signal`. What has just ended gets none.
    pub(crate) fn send(self, signal: Signal) {
        let _ = match self {
            Self::Group(group) => kill_process_group(group, signal),
            Self::Process(pid) => kill_process(pid, signal),
        };
    }

    /// Waits until no process of the group is left. A command in lockctl's own group is not waited
    /// for.
    pub(crate) async fn ended(self) {
        while let Self::Group(group) = self
            && test_kill_process_group(group).is_ok()
        {
            tokio::time::sleep(LOOK).await;
        }
    }
}
