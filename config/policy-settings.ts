/** Settings of network policy. */

import { ipAddress } from './network-types.ts';
import { setting } from './setting.ts';
import {
  boolean,
  duration,
  invalid,
  optional,
  readItems,
  textList,
  type ValueType,
  wholeNumber,
} from './value-types.ts';

const group = 'policy';

/** Milliseconds, as durations are; DNS has TTLs in whole seconds. */
function wholeSeconds({ zero }: { zero: boolean }): ValueType<number> {
  const kind = duration({ zero });
  const whole = (value: number) =>
    value % 1000 === 0 ? value : invalid('must be whole seconds, as TTLs are');
  return {
    ...kind,
    fromFlag: (text) => whole(kind.fromFlag(text)),
    fromFile: (value, onUnknown) => whole(kind.fromFile(value, onUnknown)),
  };
}

export const POLICY_SETTINGS = {
  networkPolicy: setting(group, {
    field: 'portwide.networkPolicy.enforce',
    type: boolean,
    default: false,
    overridesFile: true,
    help: 'enforce network policies for the pods of this node',
    details:
      'Works in every mode, and requires the nft and Linux versions of mode nftables. See [policy.md](policy.md). Leave it off if a network plugin enforces policies.',
  }),
  fqdnResolvers: setting(group, {
    field: 'portwide.networkPolicy.fqdnResolvers',
    type: textList('<addresses>', (items) =>
      readItems(items, (item) => ipAddress.fromFile(item, () => {})),
    ),
    default: [],
    defaultText: 'cluster IPs of Service kube-system/kube-dns',
    overridesFile: true,
    help: 'DNS servers of the pods; policies with domain names allow the addresses in their answers',
    details: 'As in the `resolv.conf` of pods. Answers of other servers are ignored.',
  }),
  fqdnTtlFloor: setting(group, {
    field: 'portwide.networkPolicy.fqdnTtlFloor',
    type: wholeSeconds({ zero: true }),
    default: 30_000,
    keepsZero: true,
    overridesFile: true,
    help: 'minimum time for which a resolved address is allowed, even if its TTL is lower',
    details:
      'A caching resolver returns the remaining TTL, which may be 0, and the client still has to connect. With `0s` the TTL alone counts.',
  }),
  fqdnTtlCap: setting(group, {
    field: 'portwide.networkPolicy.fqdnTtlCap',
    type: wholeSeconds({ zero: false }),
    default: 3_600_000,
    overridesFile: true,
    help: 'maximum time for which a resolved address is allowed; it starts again when the name is resolved again',
    details: 'Pods may use an address for its whole TTL; a lower maximum cuts them off.',
  }),
  policyLogGroup: setting(group, {
    field: 'portwide.networkPolicy.logGroup',
    type: optional(wholeNumber(0, 65535, '<group>')),
    default: undefined,
    overridesFile: true,
    defaultText: 'none',
    help: 'nflog group to which each packet denied by a policy is logged',
  }),
};
