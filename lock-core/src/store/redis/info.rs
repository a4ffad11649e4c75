//! What a server says of itself, and what of that puts locks at risk.

use redis::Value;

/// The reply to `INFO`.
pub(crate) struct Info(String);

/// Above this share of its memory a server soon refuses claims, in percent.
const NEARLY_FULL: u64 = 90;

impl Info {
    /// Reads the reply. One that is no text tells nothing.
    pub(crate) fn read(reply: Value) -> Self {
        Self(redis::from_redis_value(reply).unwrap_or_default())
    }

    /// A server that may not be asked.
    pub(crate) fn unknown() -> Self {
        Self(String::new())
    }

    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// The server and its version.
    pub(crate) fn server(&self) -> String {
        // Valkey also tells the version of Redis that it is compatible with.
        match (self.field("valkey_version"), self.field("redis_version")) {
            (Some(version), _) => format!("valkey {version}"),
            (None, Some(version)) => format!("redis {version}"),
            (None, None) => "redis".to_owned(),
        }
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.field("role").is_some_and(|role| role != "master")
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.field("loading").is_some_and(|loading| loading == "1")
    }

    /// What kind of server it is, if it is one that can never keep the locks of this store.
    pub(crate) fn other_kind(&self) -> Option<&'static str> {
        let is_cluster = self.field("cluster_enabled").is_some_and(|enabled| enabled == "1");
        // Valkey calls the field otherwise.
        match self.field("redis_mode").or_else(|| self.field("server_mode")) {
            Some("sentinel") => Some("a sentinel"),
            Some("cluster") => Some("a node of a cluster"),
            _ => is_cluster.then_some("a node of a cluster"),
        }
    }

    /// The policy by which the server removes keys when its memory is full, if it may remove locks.
    pub(crate) fn evicts_by(&self) -> Option<&str> {
        let policy = self.field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
        self.field("maxmemory").is_some_and(|most| most != "0").then_some(policy)
    }

    /// What puts locks at risk, each with what to do about it.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.is_replica() {
            problems.push("is a replica: connect to the primary".to_owned());
        }
        if self.is_loading() {
            problems.push("is loading its data: wait until it has".to_owned());
        }
        if let Some(kind) = self.other_kind() {
            problems.push(format!("is {kind}: connect to a single server"));
        }
        if let Some(policy) = self.evicts_by() {
            problems.push(format!(
                "may evict locks when its memory is full (`{policy}`): set `maxmemory-policy` to \
                 `noeviction`"
            ));
        }
        let number = |name| self.field(name).and_then(|text| text.parse::<u64>().ok());
        if let (Some(used), Some(most @ 1..)) = (number("used_memory"), number("maxmemory"))
            && used / NEARLY_FULL >= most / 100
        {
            problems.push(format!(
                "uses {used} of {most} bytes: raise `maxmemory`, or it will refuse locks"
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_server_has_no_problem_and_each_risk_is_named() {
        let healthy = "redis_version:7.0.15\r\nrole:master\r\nloading:0\r\nused_memory:1000\r\n\
                       maxmemory:0\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";
        let info = |from, to| Info(healthy.replace(from, to));
        assert_eq!(info("", "").problems(), Vec::<String>::new());
        assert_eq!(info("", "").server(), "redis 7.0.15");
        for (from, to, problem) in [
            ("role:master", "role:slave", "is a replica"),
            ("loading:0", "loading:1", "is loading"),
            ("cluster_enabled:0", "cluster_enabled:1", "of a cluster"),
            ("role:master", "role:master\r\nredis_mode:sentinel", "is a sentinel"),
            ("role:master", "role:master\r\nserver_mode:sentinel", "is a sentinel"),
            ("maxmemory:0", "maxmemory:1100", "uses 1000 of 1100 bytes"),
            (
                "maxmemory:0\r\nmaxmemory_policy:noeviction",
                "maxmemory:9999\r\nmaxmemory_policy:allkeys-lru",
                "may evict",
            ),
        ] {
            let problems = info(from, to).problems();
            assert!(matches!(problems.as_slice(), [one] if one.contains(problem)), "{problems:?}");
        }
        assert_eq!(info("maxmemory:0", "maxmemory:9999").problems(), Vec::<String>::new());
        assert!(Info::unknown().problems().is_empty());
        let valkey = info("redis_version", "valkey_version:9.1.2\r\nredis_version");
        assert_eq!(valkey.server(), "valkey 9.1.2");
    }
}
