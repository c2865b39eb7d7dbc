//! What an operator lets tunnels connect to.

use std::fmt;
use std::str::FromStr;

use super::{Target, split};

/// What an agent connects to for tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// What its user could connect to: its master has the user's login there.
    Anything,
    /// What one of these rules names.
    Only(Vec<Rule>),
}

/// One rule, `HOST:PORT`; `*` in place of either means any.
///
/// Hosts are compared as they are written, without case: a rule for a name permits no address, nor the other way round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    host: Option<String>,
    port: Option<u16>,
}

/// A text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no HOST:PORT; * in place of one means any, and an IPv6 address needs brackets")]
pub struct RuleError(String);

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let read = || {
            let (host, port) = split(text)?;
            // What stands for any part is given one that is valid, so that the other is checked.
            let target = Target::new(
                if host == "*" { "any" } else { host },
                if port == "*" { 1 } else { port.parse().ok()? },
            )?;
            Some(Self {
                host: (host != "*").then_some(target.host),
                port: (port != "*").then_some(target.port),
            })
        };
        read().ok_or_else(|| RuleError(text.to_owned()))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) if host.contains(':') => write!(f, "[{host}]:")?,
            Some(host) => write!(f, "{host}:")?,
            None => f.write_str("*:")?,
        }
        match self.port {
            Some(port) => write!(f, "{port}"),
            None => f.write_str("*"),
        }
    }
}

impl Rule {
    fn permits(&self, target: &Target) -> bool {
        let host = self.host.as_ref();
        host.is_none_or(|host| host.eq_ignore_ascii_case(&target.host))
            && self.port.is_none_or(|port| port == target.port)
    }
}

impl Allowed {
    /// Nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self::Only(Vec::new())
    }

    /// What it names, as it is written.
    #[must_use]
    pub fn rules(&self) -> Vec<String> {
        match self {
            Self::Anything => vec!["*:*".into()],
            Self::Only(rules) => rules.iter().map(Rule::to_string).collect(),
        }
    }

    /// Whether a tunnel may connect there.
    #[must_use]
    pub fn permits(&self, target: &Target) -> bool {
        match self {
            Self::Anything => true,
            Self::Only(rules) => rules.iter().any(|rule| rule.permits(target)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part is compared, and a rule permits nothing that it does not name.
    #[test]
    fn rules_name_what_they_permit() {
        let permits = |rules: &[&str], target: &str| {
            let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            Allowed::Only(rules).permits(&target.parse().unwrap())
        };
        assert!(permits(&["db:5432"], "DB:5432"));
        assert!(permits(&["x:1", "[fd00::1]:*"], "[fd00::1]:9"));
        assert!(permits(&["*:80"], "any.where:80"));
        assert!(permits(&["*:*"], "10.0.0.1:1"));
        for (rule, target) in [
            ("db:5432", "db:5433"),
            ("db:5432", "db2:5432"),
            ("db:*", "10.0.0.1:5432"),
            ("*:80", "db:8080"),
        ] {
            assert!(!permits(&[rule], target), "{rule} {target}");
        }
        assert!(!permits(&[], "db:5432"));
        assert!(Allowed::Anything.permits(&"db:1".parse().unwrap()));
        let rules = ["db:5432", "[fd00::1]:*", "*:80"];
        let read = rules.map(|rule| rule.parse().unwrap()).into();
        assert_eq!(Allowed::Only(read).rules(), rules);
        for text in ["", "db", "*", "db:0", "db:x", "*:", ":*", "a*:1"] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }
}
