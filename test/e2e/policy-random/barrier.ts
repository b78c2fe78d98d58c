import { type Host, type Lab, waitFor } from '../../lab/lab.ts';
import type { Agent } from '../agent.ts';
import type { Manifest } from '../manifests.ts';
import { namespaceManifest, networkPolicy, podManifest } from '../policy-manifests.ts';

/** Namespace of the barrier pod alone. */
const NAMESPACE = 'barrier';
const FIRST_PORT = 20_000;

/**
 * A pod that is allowed on one port, a different one each time. Once it can be reached on that
 * port, everything written before its policy is in force. Policies of all tiers must not affect
 * connections to it from clients that are not pods.
 */
export class Barrier {
  readonly #lab: Lab;
  readonly #agent: Agent;
  readonly #pod: Host;
  #round = 0;

  /** @param pod serves every port. */
  constructor(lab: Lab, agent: Agent, pod: Host) {
    this.#lab = lab;
    this.#agent = agent;
    this.#pod = pod;
  }

  /** Replaces the objects written before. The agent may read them at its start. */
  write(objects: readonly Manifest[]): void {
    this.#round += 1;
    const ingress = [{ ports: [{ port: FIRST_PORT + this.#round }] }];
    this.#agent.write('policies', [
      ...objects,
      namespaceManifest(NAMESPACE),
      podManifest(this.#pod, { namespace: NAMESPACE }),
      networkPolicy('barrier', { podSelector: {}, ingress }, NAMESPACE),
    ]);
  }

  /** Like `write`, and waits until the objects are in force in both families. */
  async apply(objects: readonly Manifest[]): Promise<void> {
    this.write(objects);
    for (const address of [this.#pod.ipv4, this.#pod.ipv6]) {
      await waitFor('the policies are in force', async () => {
        const port = FIRST_PORT + this.#round;
        const { outcome } = await this.#lab.client.tcp(address, port, { timeoutMs: 100 });
        return outcome === 'answered';
      });
    }
  }
}
