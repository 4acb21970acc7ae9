use super::Line;
use crate::names;

/// What the kernel module says of channels below `/proc`; or why that is not known.
#[derive(Clone, Debug)]
pub struct ChannelFacts {
    /// `ImexChannelCount`.
    pub count: Result<u32, String>,
    /// Major of the channels' nodes.
    pub major: Result<u32, String>,
    /// `driver/nvidia/capabilities/fabric-imex-mgmt`: the minor that it names.
    pub capability: Result<u32, String>,
    /// Slots that the node is to offer.
    pub slots: u32,
}

const COUNT_ADVICE: &str =
    "load the nvidia module with NVreg_ImexChannelCount of 2048, the same on all nodes of the clique";

pub(super) fn check(facts: &ChannelFacts) -> Vec<Line> {
    let count = match &facts.count {
        Err(why) => Line::fail("channel-count", why, "load the NVIDIA driver, or set --proc-root"),
        Ok(count @ (0 | 1)) => Line::fail(
            "channel-count",
            format!("ImexChannelCount is {count}, and channel 0 is never given away"),
            COUNT_ADVICE,
        ),
        Ok(count) if count - 1 < facts.slots => Line::warn(
            "channel-count",
            format!("ImexChannelCount is {count}, fewer than the node's {} slots may want", facts.slots),
            COUNT_ADVICE,
        ),
        Ok(count) => Line::ok("channel-count", format!("ImexChannelCount is {count}")),
    };
    let major = match &facts.major {
        Err(why) => Line::fail("channel-major", why, ""),
        Ok(major) => Line::ok("channel-major", format!("{} has major {major}", names::CHANNEL_MAJOR_NAME)),
    };
    let capability = match &facts.capability {
        Err(why) => Line::fail(
            "imex-capability",
            why,
            "the IMEX daemon cannot open its session without it: install R570 or newer, and give it the host's /proc/driver/nvidia",
        ),
        Ok(minor) => Line::ok("imex-capability", format!("fabric-imex-mgmt is /dev/nvidia-caps/nvidia-cap{minor}")),
    };
    vec![count, major, capability]
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    #[test]
    fn each_outcome() {
        let why = || Err("not there".to_owned());
        for (count, major, capability, expected) in [
            (Ok(2048), Ok(234), Ok(4323), ["Ok channel-count", "Ok channel-major", "Ok imex-capability"]),
            (Ok(17), Ok(234), Ok(4323), ["Ok channel-count", "Ok channel-major", "Ok imex-capability"]),
            (Ok(16), Ok(234), Ok(4323), ["Warn channel-count", "Ok channel-major", "Ok imex-capability"]),
            (Ok(1), Ok(234), Ok(4323), ["Fail channel-count", "Ok channel-major", "Ok imex-capability"]),
            (Ok(0), why(), Ok(4323), ["Fail channel-count", "Fail channel-major", "Ok imex-capability"]),
            (why(), why(), why(), ["Fail channel-count", "Fail channel-major", "Fail imex-capability"]),
        ] {
            assert_eq!(graded(&check(&ChannelFacts { count, major, capability, slots: 16 })), expected);
        }
    }
}
