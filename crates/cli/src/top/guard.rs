//! Which requests get the page of `top`: what of them is looked at before anything is answered. Pure.
//!
//! Any user of the host, and any page in the user's browser, can connect to a port of the loopback interface. A user's page is kept from both
//! by the token. A page of elsewhere whose name leads to this address (DNS rebinding) has the browser name that in `Host`.

use std::net::SocketAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;

/// Where there is no port in an address, it is this one.
const HTTP_PORT: u16 = 80;

/// Where the page is, and what opens it.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Its address, of the loopback interface.
    pub address: SocketAddr,
    /// Digits.
    pub token: String,
}

/// Of a request, what counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked<'r> {
    pub method: &'r str,
    pub path: &'r str,
    pub query: Option<&'r str>,
    pub host: Option<&'r str>,
    /// Values of `Cookie`, joined by `; `.
    pub cookies: &'r str,
    /// Value of `Authorization`.
    pub authorization: Option<&'r str>,
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The page.
    Page,
    /// What changes of it.
    View,
    /// The same as JSON.
    Json,
    /// The browser keeps the token, and asks again without it in the address.
    Enter,
    /// Nothing: a status of HTTP, and why.
    Refused(u16, &'static str),
}

const NO_TOKEN: &str = "open the address that `ropewalk top --web` has printed, with its token";

impl Own {
    /// The name of the cookie. Ports of one host share their cookies.
    pub fn cookie(&self) -> String {
        format!("ropewalk-{}", self.address.port())
    }

    fn is_token(&self, text: &str) -> bool {
        verify_slices_are_equal(text.as_bytes(), self.token.as_bytes()).is_ok()
    }

    /// Whether this is a name of the loopback interface, and the page's port.
    fn is_host(&self, host: &str) -> bool {
        let own = self.address.port();
        let given = host
            .rsplit_once(':')
            .filter(|(_, port)| !port.ends_with(']'));
        let name = match given {
            Some((name, port)) if port == own.to_string() => name,
            // Browsers leave the port of HTTP out.
            None if own == HTTP_PORT => host,
            _ => return false,
        };
        let names = ["127.0.0.1", "localhost", "[::1]"];
        names.contains(&name) || self.address.to_string() == format!("{name}:{own}")
    }

    /// Whether the request has the token, in a cookie or a header.
    fn has_token(&self, asked: &Asked) -> bool {
        let bearer = asked
            .authorization
            .and_then(|value| value.strip_prefix("Bearer "));
        let name = self.cookie();
        let mut cookies = asked.cookies.split(';').filter_map(|cookie| {
            let (key, value) = cookie.trim().split_once('=')?;
            (key == name).then_some(value)
        });
        bearer.is_some_and(|token| self.is_token(token))
            || cookies.any(|token| self.is_token(token))
    }

    /// What a request gets.
    pub fn judge(&self, asked: &Asked) -> Verdict {
        if asked.method != "GET" {
            return Verdict::Refused(405, "this page is only read: GET");
        }
        if !asked.host.is_some_and(|host| self.is_host(host)) {
            return Verdict::Refused(
                403,
                "this address is not the page's own; use the one that was printed",
            );
        }
        let given = asked.query.and_then(|query| query.strip_prefix("token="));
        match (asked.path, given) {
            ("/", Some(token)) if self.is_token(token) => Verdict::Enter,
            _ if !self.has_token(asked) => Verdict::Refused(403, NO_TOKEN),
            ("/", _) => Verdict::Page,
            ("/view", _) => Verdict::View,
            ("/json", _) => Verdict::Json,
            _ => Verdict::Refused(404, "there is the page at / and JSON at /json"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Own {
        Own {
            address: ([127, 0, 0, 1], 8080).into(),
            token: "c0ffee".into(),
        }
    }

    fn asked<'r>(path: &'r str, query: Option<&'r str>, cookies: &'r str) -> Asked<'r> {
        Asked {
            method: "GET",
            path,
            query,
            host: Some("127.0.0.1:8080"),
            cookies,
            authorization: None,
        }
    }

    fn refused(verdict: Verdict) -> u16 {
        match verdict {
            Verdict::Refused(status, _) => status,
            other => panic!("{other:?}"),
        }
    }

    /// The token opens the page, from the address, a cookie of this port or a header; nothing else does.
    #[test]
    fn the_token_opens_the_page() {
        let own = own();
        assert_eq!(
            own.judge(&asked("/", Some("token=c0ffee"), "")),
            Verdict::Enter
        );
        let good = "a=b; ropewalk-8080=c0ffee";
        assert_eq!(own.judge(&asked("/", None, good)), Verdict::Page);
        assert_eq!(own.judge(&asked("/view", None, good)), Verdict::View);
        assert_eq!(own.judge(&asked("/json", None, good)), Verdict::Json);
        assert_eq!(refused(own.judge(&asked("/other", None, good))), 404);
        for (path, query, cookies) in [
            ("/", None, ""),
            ("/other", None, ""),
            ("/", Some("token="), ""),
            ("/", Some("token=c0ffe"), ""),
            ("/", Some("token=c0ffeee"), ""),
            ("/", Some("token=C0FFEE"), ""),
            ("/", Some("x=1&token=c0ffee"), ""),
            // Only the page itself takes it from the address.
            ("/view", Some("token=c0ffee"), ""),
            ("/", None, "ropewalk-8081=c0ffee"),
            ("/", None, "ropewalk-8080=c0ffef"),
            ("/", None, "ropewalk-8080"),
        ] {
            assert_eq!(
                refused(own.judge(&asked(path, query, cookies))),
                403,
                "{path} {query:?} {cookies}"
            );
        }
        let with = |value| {
            own.judge(&Asked {
                authorization: Some(value),
                ..asked("/json", None, "")
            })
        };
        assert_eq!(with("Bearer c0ffee"), Verdict::Json);
        assert_eq!(refused(with("Bearer c0ffeee")), 403);
        assert_eq!(refused(with("Basic c0ffee")), 403);
    }

    /// Names of elsewhere that lead here, other ports and missing names are refused, with the token, too; so is all but reading.
    #[test]
    fn names_of_elsewhere_are_refused() {
        let own = own();
        let with = |host| {
            own.judge(&Asked {
                host,
                ..asked("/", None, "ropewalk-8080=c0ffee")
            })
        };
        for host in ["127.0.0.1:8080", "localhost:8080", "[::1]:8080"] {
            assert_eq!(with(Some(host)), Verdict::Page);
        }
        for host in [
            None,
            Some(""),
            Some("localhost"),
            Some("evil.example:8080"),
            Some("localhost.evil.example:8080"),
            Some("127.0.0.1:80"),
            Some("127.0.0.1:8080:8080"),
            Some("10.0.0.1:8080"),
        ] {
            assert_eq!(refused(with(host)), 403, "{host:?}");
        }
        for (address, host, is_own) in [
            ("127.0.0.2:8080", "127.0.0.2:8080", true),
            ("127.0.0.2:8080", "127.0.0.3:8080", false),
            ("127.0.0.1:80", "127.0.0.1", true),
            ("127.0.0.1:80", "localhost:80", true),
            ("[::1]:80", "[::1]", true),
            ("127.0.0.2:80", "127.0.0.2", true),
            ("127.0.0.1:80", "evil.example", false),
        ] {
            let address = address.parse().unwrap();
            let own = Own {
                address,
                ..own.clone()
            };
            assert_eq!(own.is_host(host), is_own, "{address} {host}");
        }
        for method in ["POST", "HEAD", "PUT", "OPTIONS", "get"] {
            let verdict = own.judge(&Asked {
                method,
                ..asked("/", None, "ropewalk-8080=c0ffee")
            });
            assert_eq!(refused(verdict), 405);
        }
    }
}
