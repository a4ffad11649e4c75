//! A real nginx in front of the instances, with the configuration of this example.

use std::fmt::Write;
use std::path::Path;

use lock_testkit::{ChildProcess, free_port};

use super::{child, program};
use crate::error::BoxError;

/// As it stands there: two instances on fixed ports.
const CONFIGURATION: &str = include_str!("../../../../nginx.conf");

/// The two places where the ports stand.
const SERVERS: &str = "        server 127.0.0.1:3001;\n        server 127.0.0.1:3002;\n";
const LISTEN: &str = "listen 127.0.0.1:8080;";

/// What nginx says once its sockets are open.
const READY: &str = "start worker process";

/// Another process may take the port between our look and nginx's.
const ATTEMPTS: usize = 3;

pub(super) async fn start(
    directory: &Path,
    instances: &[u16],
) -> Result<(ChildProcess, String), BoxError> {
    let program = program::find("nginx", "nginx", "leave --nginx away")?;
    let configuration = directory.join("nginx.conf");
    let mut failure = BoxError::from("");
    for _ in 0..ATTEMPTS {
        let port = free_port();
        std::fs::write(&configuration, configure(port, instances))?;
        let mut command = child::tended(&program)?;
        command.arg("-p").arg(directory).arg("-c").arg(&configuration);
        // Before it has read the configuration, it would log to where only root may write.
        command.args(["-e", "stderr"]);
        match child::start(&mut command, READY).await {
            Ok((nginx, _)) => return Ok((nginx, format!("http://127.0.0.1:{port}"))),
            Err(error) => failure = error,
        }
    }
    Err(format!("nginx did not start; it printed:\n{failure}").into())
}

fn configure(listen: u16, instances: &[u16]) -> String {
    let mut servers = String::new();
    for port in instances {
        writeln!(servers, "        server 127.0.0.1:{port};").expect("BUG: text can be extended");
    }
    CONFIGURATION.replace(SERVERS, &servers).replace(LISTEN, &format!("listen 127.0.0.1:{listen};"))
}

#[cfg(test)]
mod tests {
    use super::configure;

    #[test]
    fn every_port_of_the_shipped_configuration_is_replaced() {
        let text = configure(9000, &[9001, 9002, 9003]);
        let ports = |text: &str, before: &str| -> Vec<String> {
            text.lines()
                .filter_map(|line| line.trim().strip_prefix(before)?.strip_suffix(';'))
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(ports(&text, "server "), ["127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003"]);
        assert_eq!(ports(&text, "listen "), ["127.0.0.1:9000"]);
    }
}
