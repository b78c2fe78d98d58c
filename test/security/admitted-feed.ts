/** An API server whose writers are tenants: the admission policies of deploy/ judge each Service. */
import type { RemoteDouble } from '../api-server/remote.ts';
import { readObjects } from '../deploy/manifests.ts';
import { judge, type PolicySpec } from '../deploy/policy.ts';
import { ApiFeed, type Feed } from '../e2e/feed.ts';
import type { Manifest } from '../e2e/manifests.ts';
import type { Lab } from '../lab/lab.ts';

/** The API server rejected an object. */
export class NotAdmitted extends Error {
  override readonly name = 'NotAdmitted';
}

const POLICIES = readObjects('deploy/admission.yaml')
  .filter(({ kind }) => kind === 'ValidatingAdmissionPolicy')
  .map((policy) => (policy as unknown as { readonly spec: PolicySpec }).spec);

/** A feed that throws `NotAdmitted` from `write`, and then writes nothing. */
export class AdmittedFeed implements Feed {
  readonly #feed: ApiFeed;
  readonly inStreams = true;

  private constructor(feed: ApiFeed) {
    this.#feed = feed;
  }

  static async start(lab: Lab): Promise<AdmittedFeed> {
    return new AdmittedFeed(await ApiFeed.start(lab));
  }

  get flags(): readonly string[] {
    return this.#feed.flags;
  }

  get double(): RemoteDouble {
    return this.#feed.double;
  }

  write(name: string, objects: readonly Manifest[]): void {
    const admitted = objects.map((object) => (object.kind === 'Service' ? admit(object) : object));
    this.#feed.write(name, admitted);
  }

  written(): Promise<void> {
    return this.#feed.written();
  }

  destroy(): void {
    this.#feed.destroy();
  }
}

/** The Service with the API server's defaults. @throws NotAdmitted with the messages of the policies. */
function admit(service: Manifest): Manifest {
  const spec = { type: 'ClusterIP', ...(service.spec as object) };
  // As JSON: undefined fields are missing.
  const object = JSON.parse(JSON.stringify({ ...service, spec })) as Manifest;
  const messages = POLICIES.flatMap((policy) => judge(policy, { object, oldObject: null }) ?? []);
  if (messages.length > 0) throw new NotAdmitted(messages.join('; '));
  return object;
}
