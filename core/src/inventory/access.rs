use std::fmt;
use std::str::FromStr;

/// The kinds of access over NVLink that have partitions of their own, as `NVML_GPU_FABRIC_CLIQUE_TYPE_…` numbers them.
///
/// Importing memory by a handle, which is what an IMEX channel allows, is access by pointer, so [`Self::UnicastPointer`]
/// is the kind whose partition is *the* clique unless it is set otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Loads, stores and copies by pointer to one GPU.
    #[default]
    UnicastPointer,
    /// The same to several GPUs at once.
    MulticastPointer,
    /// By logical endpoint to one GPU.
    UnicastLogicalEndpoint,
    /// The same to several GPUs at once.
    MulticastLogicalEndpoint,
}

impl Access {
    /// Every kind.
    pub const ALL: [Self; 4] =
        [Self::UnicastPointer, Self::MulticastPointer, Self::UnicastLogicalEndpoint, Self::MulticastLogicalEndpoint];

    /// NVML's number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The name of the attribute that holds a GPU's partition for this kind, where it is not *the* clique.
    pub fn attribute(self) -> &'static str {
        match self {
            Self::UnicastPointer => "cliqueUnicastPointer",
            Self::MulticastPointer => "cliqueMulticastPointer",
            Self::UnicastLogicalEndpoint => "cliqueUnicastEndpoint",
            Self::MulticastLogicalEndpoint => "cliqueMulticastEndpoint",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnicastPointer => "unicast-pointer",
            Self::MulticastPointer => "multicast-pointer",
            Self::UnicastLogicalEndpoint => "unicast-logical-endpoint",
            Self::MulticastLogicalEndpoint => "multicast-logical-endpoint",
        })
    }
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|access| access.to_string() == text);
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(|access| access.to_string()).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_nvmls_numbers_and_read_as_they_are_written() {
        for (code, access) in (0..).zip(Access::ALL) {
            assert_eq!(access.code(), code);
            assert_eq!(access.to_string().parse(), Ok(access));
        }
        assert!("pointer".parse::<Access>().unwrap_err().contains("unicast-pointer"));
    }
}
