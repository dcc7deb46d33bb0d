"""Operations that the ranks find by name, in whatever order each begins them: said, compared, carried out."""
