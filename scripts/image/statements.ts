/** Files beside the image: the packages in it (SBOM), and how it was built (provenance). */
import { agentComponents, billOfMaterials } from '../dist/sbom.ts';
import { SUITE } from './contents.ts';
import type { DebianPackage } from './lock.ts';
import type { ImageDescription } from './oci.ts';

/** Packages of the image as CycloneDX. @param bundled paths of packages in the bundle */
export function softwareBill(
  { architecture, tag, epoch }: ImageDescription,
  debian: readonly DebianPackage[],
  bundled: readonly string[],
): string {
  const components = debian.map((each) => {
    const purl = `pkg:deb/debian/${each.name}@${encodeURIComponent(each.version)}?arch=${each.architecture}&distro=${SUITE}`;
    return {
      type: 'library',
      'bom-ref': purl,
      name: each.name,
      version: each.version,
      purl,
      hashes: [{ alg: 'SHA-256', content: each.sha256 }],
    };
  });
  const subject = {
    type: 'container',
    'bom-ref': `portwide-${tag}-${architecture}`,
  } as const;
  const all = [...components, ...agentComponents(bundled, [architecture])];
  return billOfMaterials(subject, all, epoch);
}

export interface Material {
  readonly uri: string;
  readonly digest: Readonly<Record<string, string>>;
}

/** An in-toto statement with SLSA provenance, version 1. It is not signed. */
export function provenance(
  { architecture, version, tag, epoch }: ImageDescription,
  subject: readonly { readonly name: string; readonly digest: Readonly<Record<string, string>> }[],
  materials: readonly Material[],
  source: string,
) {
  return {
    _type: 'https://in-toto.io/Statement/v1',
    subject,
    predicateType: 'https://slsa.dev/provenance/v1',
    predicate: {
      buildDefinition: {
        buildType: `${source}/scripts/image/v1`,
        externalParameters: { architecture, version, tag, SOURCE_DATE_EPOCH: epoch },
        resolvedDependencies: materials,
      },
      runDetails: {
        // A CI system sets its own name.
        builder: { id: process.env.PORTWIDE_BUILDER ?? `${source}/make-image` },
      },
    },
  };
}
