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

/** A duration in milliseconds that must be whole seconds, the unit of DNS TTLs. */
function wholeSeconds({ zero }: { zero: boolean }): ValueType<number> {
  const type = duration({ zero });
  const whole = (value: number) =>
    value % 1000 === 0 ? value : invalid('must be a whole number of seconds, like a DNS TTL');
  return {
    ...type,
    fromFlag: (text) => whole(type.fromFlag(text)),
    fromFile: (value, onUnknown) => whole(type.fromFile(value, onUnknown)),
  };
}

export const POLICY_SETTINGS = {
  networkPolicy: setting(group, {
    field: 'portwide.networkPolicy.enforce',
    type: boolean,
    default: false,
    overridesFile: true,
    help: 'enforce network policies for the pods on this node',
    details: 'See [network policy](../guide/network-policy.md).',
  }),
  fqdnResolvers: setting(group, {
    field: 'portwide.networkPolicy.fqdnResolvers',
    type: textList('<addresses>', (items) =>
      readItems(items, (item) => ipAddress.fromFile(item, () => {})),
    ),
    default: [],
    defaultText: 'cluster IPs of Service kube-system/kube-dns',
    overridesFile: true,
    help: 'DNS servers of the pods; rules with domain names allow the addresses in their answers',
    details: "Use the addresses in the pods' `resolv.conf`. Answers of other servers are ignored.",
  }),
  fqdnTtlFloor: setting(group, {
    field: 'portwide.networkPolicy.fqdnTtlFloor',
    type: wholeSeconds({ zero: true }),
    default: 30_000,
    keepsZero: true,
    overridesFile: true,
    help: 'minimum time for which a resolved address stays allowed, even if its TTL is lower',
    details:
      'A caching resolver returns the remaining TTL, which may be 0 before the client has connected. `0s`: use the TTL alone.',
  }),
  fqdnTtlCap: setting(group, {
    field: 'portwide.networkPolicy.fqdnTtlCap',
    type: wholeSeconds({ zero: false }),
    default: 3_600_000,
    overridesFile: true,
    help: 'maximum time for which a resolved address stays allowed; counts again from each new answer',
    details: 'A maximum below the TTL denies pods an address that they may still use.',
  }),
  policyLogGroup: setting(group, {
    field: 'portwide.networkPolicy.logGroup',
    type: optional(wholeNumber(0, 65535, '<group>')),
    default: undefined,
    overridesFile: true,
    defaultText: 'none',
    help: 'NFLOG group to which packets denied by a policy are logged',
  }),
};
