import fc from 'fast-check';

/** Checks a property with 500 generated values, the same in every run. */
export function checkProperty<T>(property: fc.IProperty<T>): void {
  fc.assert(property, { seed: 20, numRuns: 500 });
}
