/** Settings of network policy. */
import { boolean, duration, each, integer, type Kind, list, optional, refuse } from './kinds.ts';
import { address } from './network-kinds.ts';
import { setting } from './setting.ts';

const group = 'policy';

/** Milliseconds, as durations are; DNS has TTLs in whole seconds. */
function wholeSeconds({ zero }: { zero: boolean }): Kind<number> {
  const kind = duration({ zero });
  const whole = (value: number) =>
    value % 1000 === 0 ? value : refuse('must be whole seconds, as TTLs are');
  return {
    ...kind,
    fromFlag: (text) => whole(kind.fromFlag(text)),
    fromFile: (value, onUnknown) => whole(kind.fromFile(value, onUnknown)),
  };
}

export const POLICY_SETTINGS = {
  networkPolicy: setting(group, {
    field: 'portwide.networkPolicy.enforce',
    kind: boolean,
    default: false,
    winsOverFile: true,
    text: 'enforce network policies for the pods of this node',
    more: 'Works in every mode, and requires the nft and Linux versions of mode nftables. See [policy.md](policy.md). Leave it off if a network plugin enforces policies.',
  }),
  fqdnResolvers: setting(group, {
    field: 'portwide.networkPolicy.fqdnResolvers',
    kind: list('<addresses>', (items) => each(items, (item) => address.fromFile(item, () => {}))),
    default: [],
    shownDefault: 'cluster IPs of Service kube-system/kube-dns',
    winsOverFile: true,
    text: 'DNS servers of the pods; policies with domain names allow the addresses in their answers',
    more: 'As in the `resolv.conf` of pods. Answers of other servers are ignored.',
  }),
  fqdnTtlFloor: setting(group, {
    field: 'portwide.networkPolicy.fqdnTtlFloor',
    kind: wholeSeconds({ zero: true }),
    default: 30_000,
    keepsZero: true,
    winsOverFile: true,
    text: 'minimum time for which a resolved address is allowed, even if its TTL is lower',
    more: 'A caching resolver returns the remaining TTL, which may be 0, and the client still has to connect. With `0s` the TTL alone counts.',
  }),
  fqdnTtlCap: setting(group, {
    field: 'portwide.networkPolicy.fqdnTtlCap',
    kind: wholeSeconds({ zero: false }),
    default: 3_600_000,
    winsOverFile: true,
    text: 'maximum time for which a resolved address is allowed; it starts again when the name is resolved again',
    more: 'Pods may use an address for its whole TTL; a lower maximum cuts them off.',
  }),
  policyLogGroup: setting(group, {
    field: 'portwide.networkPolicy.logGroup',
    kind: optional(integer(0, 65535, '<group>')),
    default: undefined,
    winsOverFile: true,
    shownDefault: 'none',
    text: 'nflog group to which each packet denied by a policy is logged',
  }),
};
