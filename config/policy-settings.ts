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
  networkPolicy: setting({
    group,
    field: 'portwide.networkPolicy.enforce',
    kind: boolean,
    default: false,
    winsOverFile: true,
    text: 'enforce network policies for the pods of this node',
    more: 'In every mode; it takes nft and Linux as mode nftables does. See [policy.md](policy.md). Where something else enforces policies already, leave it off.',
  }),
  fqdnResolvers: setting({
    group,
    field: 'portwide.networkPolicy.fqdnResolvers',
    kind: list<readonly string[]>(
      '<addresses>',
      (items) => each(items, (item) => address.fromFile(item, () => {})),
      (value) => value,
    ),
    default: [],
    shownDefault: 'cluster IPs of Service kube-system/kube-dns',
    winsOverFile: true,
    text: 'DNS servers of the pods, from whose answers the addresses of domain names are learned',
    more: 'As pods address them: what is in their `resolv.conf`. Answers of others count for nothing.',
  }),
  fqdnTtlFloor: setting({
    group,
    field: 'portwide.networkPolicy.fqdnTtlFloor',
    kind: wholeSeconds({ zero: true }),
    default: 30_000,
    keepsZero: true,
    winsOverFile: true,
    text: 'how long an address of a domain name is allowed at least, whatever its TTL',
    more: 'A resolver hands out what is left of a TTL, be it nothing, and whoever asked has yet to connect. `0s` honours every TTL.',
  }),
  fqdnTtlCap: setting({
    group,
    field: 'portwide.networkPolicy.fqdnTtlCap',
    kind: wholeSeconds({ zero: false }),
    default: 3_600_000,
    winsOverFile: true,
    text: 'how long an address of a domain name is allowed at most, unless it is resolved again',
    more: 'A pod may use an address for its TTL; a cap below that cuts off pods that do.',
  }),
  policyLogGroup: setting({
    group,
    field: 'portwide.networkPolicy.logGroup',
    kind: optional(integer(0, 65535, '<group>')),
    default: undefined,
    winsOverFile: true,
    shownDefault: 'none',
    text: 'group of nflog that hears of each packet that policies deny',
  }),
};
