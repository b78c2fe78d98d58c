/** A sequence of policy states with some verdicts that never change. */
import type { IpFamily } from '../../api/objects.ts';
import type { PolicyChange, PolicyElement } from '../../policy/compile/change.ts';
import {
  address,
  chainRule,
  DENY_REST,
  peers,
  policyChange,
  policySetChain,
  ports,
} from './fixtures.ts';
import type { TableState } from './policy-functions.ts';

/** The subject and its peers. */
export interface Churn {
  readonly family: IpFamily;
  readonly pod: string;
  /** Peers that are allowed in even steps, in odd steps, and always. */
  readonly even: string;
  readonly odd: string;
  readonly always: string;
  /**
   * Peers that are never allowed: by default deny, and by a deny rule for one port of a network.
   */
  readonly never: string;
  readonly network: string;
}

/** The port that is denied in `network`. */
export const DENIED_PORT = 4000;
const UDP = 17;
const FILLING = 300;

/** The state of a step. Every step has new list ids. */
export function stateOf(step: number, churn: Churn): TableState {
  const list = firstListOf(step);
  const { family, pod, always, network } = churn;
  const admin = [
    chainRule({
      verdict: 'deny-admin',
      peers: peers(list + 1, 'networks'),
      ports: ports(list + 2),
    }),
    chainRule({ peers: peers(list + 3) }),
  ];
  const rest = [
    chainRule({ peers: peers(list) }),
    chainRule({ peers: peers(list + 4, 'networks') }),
  ];
  const filling = Array.from({ length: FILLING }, (_, index): PolicyElement[] => {
    const [peer, some] = [address(family, 1000 + index), address(family, 2 * index)];
    return [
      { set: 'peers', list, address: peer },
      { set: 'networks', list: list + 1, first: some, last: some },
    ];
  });
  const range = (offset: number, one: string): PolicyElement => ({
    set: 'networks',
    list: list + offset,
    first: one,
    last: one,
  });
  return {
    chains: [policySetChain('egress', policySetIdOf(step), [...rest, DENY_REST], admin)],
    elements: [
      { set: 'egress-pods', address: pod, policySetId: policySetIdOf(step) },
      ...filling.flat(),
      { set: 'peers', list, address: step % 2 === 0 ? churn.even : churn.odd },
      range(1, network),
      {
        set: 'ports',
        list: list + 2,
        protocol: UDP,
        first: DENIED_PORT,
        last: DENIED_PORT + (step % 7),
      },
      { set: 'peers', list: list + 3, address: network },
      range(4, always),
    ],
  };
}

/** The change from the previous step. Two consecutive steps share a policy set id. */
export function changeTo(step: number, churn: Churn): PolicyChange {
  const [before, now] = [stateOf(step - 1, churn), stateOf(step, churn)];
  const isSame = policySetIdOf(step) === policySetIdOf(step - 1);
  const isPod = ({ set }: PolicyElement) => set === 'egress-pods';
  return policyChange(churn.family, {
    prepare: now.elements.filter((each) => !isPod(each)),
    remove: isSame ? [] : before.elements.filter(isPod),
    add: isSame ? [] : now.elements.filter(isPod),
    chains: now.chains,
    cleanup: before.elements.filter((each) => !isPod(each)),
    cleanupChains: isSame ? [] : [{ direction: 'egress', policySetId: policySetIdOf(step - 1) }],
  });
}

function firstListOf(step: number): number {
  return 1 + 5 * step;
}

function policySetIdOf(step: number): number {
  return 1 + Math.floor(step / 2);
}
